//! From when to when is measured: the same for every contestant.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::Measured;
use crate::processes::{self, Servers, Usage};

/// Notes the first record and the last acknowledgement, and the processor time at both. Clones are one clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    servers: Servers,
    marks: Arc<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    begin: OnceLock<(Instant, Usage)>,
    end: OnceLock<(Instant, Usage)>,
}

impl Clock {
    pub(crate) fn new(servers: Servers) -> Self {
        Self { servers, marks: Arc::default() }
    }

    /// A record was received; the first one counts.
    pub(crate) fn received(&self) {
        self.marks.begin.get_or_init(|| (Instant::now(), self.servers.usage()));
    }

    /// The last record is committed and acknowledged.
    pub(crate) fn done(&self) {
        let now = Instant::now();
        self.marks.end.get_or_init(|| (now, self.servers.usage()));
    }

    /// How long since the first record; zero before it.
    pub(crate) fn seconds(&self) -> f64 {
        self.marks.begin.get().map_or(0.0, |(begin, _)| begin.elapsed().as_secs_f64())
    }

    pub(crate) fn measured(&self, transactions: u64) -> Result<Measured> {
        let (begin, before) = self.marks.begin.get().context("no record was received")?;
        let (end, after) = self.marks.end.get().context("the last record was not committed")?;
        Ok(Measured {
            seconds: end.duration_since(*begin).as_secs_f64(),
            transactions,
            usage: after.since(*before),
            peak: processes::peak()?,
        })
    }
}
