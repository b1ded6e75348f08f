//! The tasks that look after what is held: leases are extended, lost ones noticed, and what is not wanted is given back.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::{client::Remote, handover::Shared, poll::Reader, settle};

/// How often leases are looked at, at least.
const LOOK: Duration = Duration::from_millis(250);

/// Extends leases and gives back, until the transport is closed; then gives back everything and leaves the group.
pub(crate) async fn keep(shared: Arc<Shared>, remote: Remote, reader: Arc<Reader>) {
    let lease = remote.config.lease;
    let mut tick = ticks(lease / 3);
    loop {
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => break,
            () = shared.returned.notified() => {}
            () = shared.dropped() => shared.take_dropped(),
            _ = tick.tick() => if !settle::extend(&remote, &shared.member, &shared.all(), lease).await {
                // Whoever reads next makes the group again.
                shared.lose_session();
            },
        }
        if give_back(&shared, &remote).await && shared.is_asked() {
            // Whoever waits at the server for something new is to look for this first.
            shared.look.store(true, Ordering::Release);
            reader.hurry(&remote).await;
        }
    }
    shared.end();
    give_back(&shared, &remote).await;
    reader.hurry(&remote).await;
    // What the read that was under way has brought. An error says that its task is gone.
    drop(shared.drained.subscribe().wait_for(|drained| *drained).await);
    give_back(&shared, &remote).await;
    settle::leave(&remote, &shared.member).await;
    shared.left.send_replace(true);
}

/// Whether there was anything.
async fn give_back(shared: &Shared, remote: &Remote) -> bool {
    let held = shared.take_returned();
    if held.is_empty() {
        return false;
    }
    settle::give_back(remote, &shared.member, &held).await;
    true
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
