//! Gives receipts back to the transport, many at a time: acknowledged after COMMIT, or released.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::{bound::Permit, engine::Engine};
use crate::{
    error::report,
    failure_store::FailureStore,
    transport::{Receipt, Transport},
};

/// A receipt on its way back. Its place in the in-flight bound is freed when the transport has it.
pub(crate) struct Settle {
    pub(crate) receipt: Receipt,
    pub(crate) permit: Option<Permit>,
    pub(crate) what: Verdict,
}

/// What is to be told to the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Done for good.
    Ack,
    /// Not attempted; the label says why.
    Release(&'static str),
}

/// Where lanes put their receipts, those of a transaction together. Unbounded, because what is in flight is bounded
/// already.
pub(crate) type Settler = UnboundedSender<Vec<Settle>>;

/// How many receipts one call of `ack` takes at most.
const AT_ONCE: usize = 1_000;

/// Runs until every [`Settler`] is dropped and all receipts are given back.
pub(crate) async fn run<S: FailureStore>(
    engine: Arc<Engine<S>>,
    transport: Arc<dyn Transport>,
    mut queue: UnboundedReceiver<Vec<Settle>>,
) {
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            let Some(first) = queue.recv().await else { return };
            waiting = first;
        }
        while waiting.len() < AT_ONCE
            && let Ok(mut more) = queue.try_recv()
        {
            waiting.append(&mut more);
        }
        let mut acks = Vec::with_capacity(waiting.len().min(AT_ONCE));
        let mut releases = Vec::new();
        let mut permits = Vec::with_capacity(waiting.len().min(AT_ONCE));
        for settle in waiting.drain(..waiting.len().min(AT_ONCE)) {
            permits.push(settle.permit);
            match settle.what {
                Verdict::Ack => acks.push(settle.receipt),
                Verdict::Release(reason) => {
                    engine.counters.released(1, reason);
                    releases.push(settle.receipt);
                }
            }
        }
        let sent = acks.len();
        if sent > 0 {
            // A lost acknowledgement is a lost delivery, not a fault: the claim is the truth, and the copy that comes
            // again will find it.
            let lost = match transport.ack(acks).await {
                Ok(acked) => acked.lost,
                Err(error) => {
                    tracing::debug!(error = %report(&error), "acknowledging failed");
                    sent
                }
            };
            engine.counters.lost_acks.add(lost);
            failpoint!("inbox::g");
        }
        if !releases.is_empty()
            && let Err(error) = transport.release(releases).await
        {
            tracing::debug!(error = %report(&error), "releasing failed; the leases end by themselves");
        }
        drop(permits);
    }
}
