//! The tasks that look after what is held: leases are extended, lost ones noticed, and what is not wanted is given back.

use std::{sync::Arc, time::Duration};

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::{client::Remote, handover::Shared, settle};

/// How often leases are looked at, at least.
const LOOK: Duration = Duration::from_millis(250);

/// Extends leases and gives back, until the transport is closed; then gives back everything.
///
/// One task does both, one after the other: an extension that overtakes giving back would hide a message for a lease.
pub(crate) async fn keep(shared: Arc<Shared>, remote: Remote) {
    let lease = remote.config.lease;
    let mut tick = ticks(lease / 8);
    loop {
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => break,
            () = shared.returned.notified() => {}
            () = shared.dropped() => shared.take_dropped(),
            _ = tick.tick() => settle::extend(&remote, shared.due(lease)).await,
        }
        give_back(&shared, &remote).await;
    }
    shared.end();
    give_back(&shared, &remote).await;
    // What the receives that were under way have brought. An error says that their task is gone.
    drop(shared.drained.subscribe().wait_for(|drained| *drained).await);
    give_back(&shared, &remote).await;
    shared.left.send_replace(true);
}

async fn give_back(shared: &Shared, remote: &Remote) {
    let handles = shared.take_returned();
    if !handles.is_empty() {
        settle::give_back(remote, handles).await;
    }
}

/// Notices leases that have ended and messages that nobody asks for, until the transport is closed.
pub(crate) async fn look_after(shared: Arc<Shared>, lease: Duration) {
    let mut tick = ticks((lease / 8).min(LOOK));
    loop {
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => return,
            _ = tick.tick() => shared.look_after(),
        }
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
