//! The inbox, through its facade alone. What is measured is seen from the outside, by a transport around the transport.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use async_trait::async_trait;
use inbox::{
    Acked, Capacity, Delivery, HandlerError, Inbox, InboxHandle, Receipt, Transport, TransportError,
    capability::{Capabilities, MaxAge},
    postgres::{PgConfig, PgTransaction},
};
use tokio_util::sync::CancellationToken;

use super::{Job, Line, Sample, clock::Clock, receipts, say};
use crate::{
    processes,
    workload::{KIND, Payment},
};

async fn on_captured(payment: Payment, tx: &mut PgTransaction<'_>) -> Result<(), HandlerError> {
    receipts::insert(tx, &payment).await?;
    Ok(())
}

/// Runs at the defaults, or with as many lanes as said, each with one connection.
pub(crate) async fn run(job: &Job, clock: &Clock, lanes: Option<usize>) -> Result<u64> {
    let mut config = PgConfig::url(&job.database)?;
    if let Some(lanes) = lanes {
        config = config.connections(u32::try_from(lanes)?);
    }
    let store = config.connect().await?;
    let done = CancellationToken::new();
    let transport = Watched {
        inner: inbox::connect(&job.address.url()).await?,
        clock: clock.clone(),
        left: AtomicUsize::new(job.records),
        says_idle: job.watched,
        done: done.clone(),
    };
    let mut builder = Inbox::new("receipts", transport, store).on(KIND, on_captured);
    if let Some(lanes) = lanes {
        builder = builder.lanes(lanes);
    }
    let inbox = builder.build()?;
    let handle = inbox.handle();
    let watching = async { if job.watched { watch(&handle, clock).await } else { std::future::pending().await } };
    tokio::select! {
        ended = inbox.run(done.cancelled_owned()) => ended?,
        failed = watching => failed?,
    }
    Ok(handle.numbers().commits)
}

/// Says each second how things stand.
async fn watch(handle: &InboxHandle, clock: &Clock) -> Result<()> {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        let (resident, in_flight) = (processes::resident()?, handle.numbers().in_flight);
        say(&Line::Sample(Sample { seconds: clock.seconds(), resident, in_flight }))?;
    }
}

/// Tells the clock of the first delivery and of the last acknowledgement.
struct Watched {
    inner: Arc<dyn Transport>,
    clock: Clock,
    left: AtomicUsize,
    says_idle: bool,
    done: CancellationToken,
}

#[async_trait]
impl Transport for Watched {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        if self.says_idle && self.clock.seconds() == 0.0 {
            let said = processes::resident().and_then(|resident| say(&Line::Idle(resident)));
            if let Err(error) = said {
                eprintln!("{error:#}");
            }
        }
        let deliveries = self.inner.receive(capacity).await?;
        self.clock.received();
        Ok(deliveries)
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let acked = self.inner.ack(receipts).await?;
        // What was lost comes again, and is acknowledged then.
        if self.left.fetch_sub(acked.acked, Ordering::AcqRel) == acked.acked {
            self.clock.done();
            self.done.cancel();
        }
        Ok(acked)
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        self.inner.release(receipts).await
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        self.inner.max_age().await
    }

    fn connected(&self) -> bool {
        self.inner.connected()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        self.inner.close(deadline).await
    }
}

#[cfg(test)]
mod tests {
    use inbox::memory::{MemoryStore, MemoryTx};

    use super::*;
    use crate::contestant::{BATCH, IN_FLIGHT_BYTES, LANES, WAITING};

    async fn handler(_: Payment, _: &mut MemoryTx) -> Result<(), HandlerError> {
        Ok(())
    }

    /// The hand-written loops have as many connections and messages a batch as these.
    #[test]
    fn the_defaults_are_those_that_the_report_speaks_of() {
        let shown = format!("{:?}", Inbox::local("c", MemoryStore::new()).on(KIND, handler));
        for setting in [
            format!("lanes: {LANES},"),
            format!("max_batch: {BATCH},"),
            format!("messages: {WAITING},"),
            format!("bytes: {IN_FLIGHT_BYTES} }}"),
        ] {
            assert!(shown.contains(&setting), "{setting} is not in {shown}");
        }
    }
}
