//! Ack and release, and the leases of what is held: the one file where brokers differ.
//!
//! An answer of a script speaks of all its entries, or of none: one that fails is asked again a few times, since the server
//! may have been restarted meanwhile.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inbox_core::{TransportErrorKind, report};
use redis::{FromRedisValue, RedisError, Script};
use tokio::time::{Instant, sleep};

use crate::{client::Remote, error, handover::Member, script};

/// How many entries share a call: the server does nothing else meanwhile.
const BATCH: usize = 500;
/// How often what could not be asked right now is asked, and the first pause between.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// For how long an entry stays with this process, by this process's clock.
#[derive(Debug)]
pub(crate) struct Lease(Mutex<Instant>);

impl Lease {
    pub(crate) fn until(until: Instant) -> Self {
        Self(Mutex::new(until))
    }

    pub(crate) fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    pub(crate) fn has_ended(&self, now: Instant) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) <= now
    }
}

/// What settles an entry: its id, and how often it was handed over, which nobody else's delivery of it has.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) id: Arc<str>,
    pub(crate) count: u32,
    pub(crate) lease: Arc<Lease>,
}

/// Acks; how many the server has confirmed. Those that went to somebody else meanwhile are not among them.
pub(crate) async fn ack(remote: &Remote, member: &Member, held: &[Held]) -> usize {
    let delete = if remote.config.delete { "1" } else { "0" };
    let mut acked = 0;
    for some in held.chunks(BATCH) {
        match ask::<usize>(remote, member, &script::ACK, Some(delete), some, TRIES).await {
            Ok(count) => acked += count,
            Err(error) => failed(remote, "ack", error, some.len()),
        }
    }
    acked
}

/// Gives back, for whoever asks next.
pub(crate) async fn give_back(remote: &Remote, member: &Member, held: &[Held]) {
    for some in held.chunks(BATCH) {
        match ask::<usize>(remote, member, &script::GIVE_BACK, Some(member.nobody()), some, TRIES).await {
            Ok(given) if given == some.len() => {}
            Ok(given) => tracing::debug!(lost = some.len() - given, "not given back: others have them, or nobody"),
            Err(error) => failed(remote, "release", error, some.len()),
        }
    }
}

/// Begins leases anew. Those that the server does not know any more have ended. False: it knows none, the group is gone.
pub(crate) async fn extend(remote: &Remote, member: &Member, held: &[Held], lease: Duration) -> bool {
    for some in held.chunks(BATCH) {
        let began = Instant::now();
        // Once, and not for long: what failed is tried again at the next look.
        let asked = ask::<Vec<usize>>(remote, member, &script::EXTEND, None, some, 1);
        match tokio::time::timeout(lease / 4, asked).await {
            Ok(Ok(lost)) => {
                some.iter().for_each(|held| held.lease.set(began + lease));
                lost.into_iter().filter_map(|at| some.get(at)).for_each(|held| held.lease.set(began));
            }
            Ok(Err(error)) if error::is_no_group(&error) => return false,
            Ok(Err(error)) => failed(remote, "extend leases", error, some.len()),
            Err(_) => {
                // A connection that is silent may stay so.
                remote.give_up();
                tracing::warn!(entries = some.len(), "leases were not extended in time; it is tried again");
            }
        }
    }
    true
}

/// Leaves the group: nothing stays with this consumer, not even what it never got to see.
pub(crate) async fn leave(remote: &Remote, member: &Member) {
    if let Err(error) = ask::<i64>(remote, member, &script::LEAVE, Some(member.nobody()), &[], TRIES).await {
        failed(remote, "close", error, 0);
    }
}

async fn ask<T: FromRedisValue>(
    remote: &Remote,
    member: &Member,
    script: &Script,
    option: Option<&str>,
    held: &[Held],
    tries: u32,
) -> Result<T, RedisError> {
    let mut call = script.key(&*remote.stream);
    call.arg(&*member.group).arg(&*member.consumer);
    if let Some(option) = option {
        call.arg(option);
    }
    for held in held {
        call.arg(&*held.id).arg(held.count);
    }
    let mut nth = 1;
    loop {
        let answer = match remote.connection().await {
            Ok(mut connection) => remote.noted(call.invoke_async(&mut connection).await),
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if nth < tries && error::kind_of(&error) == TransportErrorKind::Unavailable => {
                sleep(PAUSE * 2_u32.pow(nth - 1)).await;
                nth += 1;
            }
            answer => return answer,
        }
    }
}

fn failed(remote: &Remote, operation: &'static str, error: RedisError, entries: usize) {
    let error = remote.refused(operation, error);
    tracing::warn!(error = %report(&error), entries, "a request failed; what was held comes again when its lease ends");
}
