//! One contestant on empty tables, in a process of its own, and what it left.

use anyhow::Result;
use url::Url;

use crate::{
    address::Address,
    child,
    contestant::{Contestant, Job, Line, Measured},
    database::{Database, Found},
    machine::Machine,
    processes::Servers,
};

/// Where contestants run: a database of its own.
#[derive(Debug)]
pub(crate) struct Trials {
    database: Database,
    postmaster: Option<i32>,
}

/// What a contestant did, and what it left.
#[derive(Debug)]
pub(crate) struct Performance {
    pub(crate) measured: Measured,
    pub(crate) found: Found,
    pub(crate) faults: Vec<String>,
}

impl Performance {
    /// Compares.
    pub(crate) fn judged(measured: Measured, found: Found, expected: &Found) -> Self {
        Self { measured, found, faults: found.faults(expected) }
    }
}

impl Trials {
    /// Makes the database.
    pub(crate) async fn new(postgres: &Url, name: &str) -> Result<Self> {
        let database = Database::new(postgres, name).await?;
        match database.postmaster().await {
            Ok(postmaster) => Ok(Self { database, postmaster }),
            Err(error) => {
                database.remove().await;
                Err(error)
            }
        }
    }

    /// Runs a contestant, which has `records` to consume from a broker of process `broker`, and looks what it left in the
    /// database.
    pub(crate) async fn run(
        &self,
        contestant: Contestant,
        (address, records): (Address, usize),
        broker: Option<i32>,
        watched: bool,
        each: impl FnMut(Line),
    ) -> Result<(Measured, Found)> {
        self.database.reset().await?;
        let servers = Servers { postmaster: self.postmaster, broker };
        let job = Job { contestant, address, database: self.database.url(), records, servers, watched };
        let measured = child::run(&job, each).await?;
        Ok((measured, self.database.found().await?))
    }

    /// What the figures depend on.
    pub(crate) async fn machine(&self, broker: String) -> Result<Machine> {
        Machine::look(&self.database, broker).await
    }

    /// Removes the database.
    pub(crate) async fn remove(self) {
        self.database.remove().await;
    }
}
