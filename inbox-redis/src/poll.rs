//! The task that asks the server for entries: what others left, then what is new.
//!
//! A read that was sent is never dropped: what the server gives to one that nobody reads is with this consumer, and comes
//! again when its lease ends. It is ended early by a word over the other connection (`CLIENT UNBLOCK`), where the user may
//! say it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use inbox_core::{Backoff, TransportErrorKind, report};
use redis::{RedisError, aio::MultiplexedConnection, cmd};
use tokio::time::{Instant, sleep};

use crate::{admin, client::Remote, convert, error, handover::Shared, script};

/// Between two tries while the server cannot be asked.
const AWAY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) };
/// How often it is looked for what others left, at most.
const LOOK: Duration = Duration::from_millis(500);

/// The connection that waits at the server, by the number that the server has given it; 0 while there is none.
#[derive(Debug, Default)]
pub(crate) struct Reader(AtomicI64);

impl Reader {
    /// Ends the wait of a read, if there is one.
    pub(crate) async fn hurry(&self, remote: &Remote) {
        let id = self.0.load(Ordering::Acquire);
        if id == 0 {
            return;
        }
        if let Ok(mut connection) = remote.connection().await {
            let hurried = cmd("CLIENT").arg("UNBLOCK").arg(id).query_async::<i64>(&mut connection).await;
            if let Err(error) = remote.noted(hurried) {
                // It ends by itself, a little later.
                tracing::debug!(%error, "a read was not hurried");
            }
        }
    }
}

/// Asks for entries until the transport is closed.
pub(crate) async fn poll(shared: Arc<Shared>, remote: Remote, reader: Arc<Reader>) {
    let mut polling = Polling { shared, remote, reader, connection: None, cursor: START.to_owned(), looked: None };
    let (mut failures, mut first) = (0, true);
    while !polling.shared.closed.is_cancelled() {
        match polling.once().await {
            Ok(()) => {
                polling.shared.set_connected(true);
                (failures, first) = (0, false);
            }
            Err(error) => {
                polling.failed(error, first).await;
                failures += 1;
                tokio::select! {
                    () = polling.shared.closed.cancelled() => {}
                    () = sleep(AWAY.wait(failures, fastrand::f64())) => {}
                }
            }
        }
    }
    polling.shared.drained.send_replace(true);
}

/// Where a look begins and, as an answer, ends.
const START: &str = "0-0";

struct Polling {
    shared: Arc<Shared>,
    remote: Remote,
    reader: Arc<Reader>,
    connection: Option<MultiplexedConnection>,
    /// How far it was looked for what others left.
    cursor: String,
    looked: Option<Instant>,
}

impl Polling {
    /// One look and one read, or a wait for somebody who asks.
    async fn once(&mut self) -> Result<(), RedisError> {
        let asked = self.shared.look.swap(false, Ordering::AcqRel);
        if asked || self.looked.is_none_or(|looked| looked.elapsed() >= LOOK.min(self.remote.config.lease / 4)) {
            self.look().await?;
        }
        if let Some(room) = self.shared.reserve() {
            return self.read(room).await;
        }
        tokio::select! {
            () = self.shared.closed.cancelled() => {}
            () = self.shared.asked.notified() => {}
        }
        Ok(())
    }

    /// Takes what others left.
    async fn look(&mut self) -> Result<(), RedisError> {
        let Some(room) = self.shared.reserve() else {
            self.shared.look.store(true, Ordering::Release);
            return Ok(());
        };
        let since = Instant::now();
        let found = self.left(room).await;
        let (answer, entries) = match found {
            Ok((cursor, entries)) => (Ok(cursor), entries),
            Err(error) => (Err(error), Vec::new()),
        };
        let full = entries.len() >= room;
        self.shared.took(&self.remote, room, entries, since);
        self.cursor = answer?;
        // Of what was given back there may be more, and of a dead consumer's too.
        if full {
            self.shared.look.store(true, Ordering::Release);
        }
        self.looked = Some(since);
        Ok(())
    }

    async fn left(&self, room: usize) -> Result<(String, Vec<convert::Left>), RedisError> {
        let Self { shared, remote, .. } = self;
        let mut call = script::TAKE.key(&*remote.stream);
        call.arg(&*shared.member.group).arg(&*shared.member.consumer).arg(shared.member.nobody());
        call.arg(millis(remote.config.lease)).arg(room).arg(&*self.cursor);
        let mut connection = remote.connection().await?;
        let answer = remote.noted(call.invoke_async(&mut connection).await)?;
        convert::left(answer).ok_or_else(strange)
    }

    /// Reads what is new.
    async fn read(&mut self, room: usize) -> Result<(), RedisError> {
        // Before the read is sent: by the server's clock the lease begins later.
        let since = Instant::now();
        let (answer, entries) = match self.new_entries(room).await {
            Ok(entries) => (Ok(()), entries),
            Err(error) => (Err(error), Vec::new()),
        };
        self.shared.came(&self.remote, room, entries, since);
        answer
    }

    async fn new_entries(&mut self, room: usize) -> Result<Vec<convert::Entry>, RedisError> {
        let wait = self.remote.config.waits();
        let mut connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => {
                let mut opened = self.remote.open(wait + self.remote.config.request_timeout).await?;
                let id = cmd("CLIENT").arg("ID").query_async::<i64>(&mut opened).await;
                self.reader.0.store(id.unwrap_or(0), Ordering::Release);
                self.connection.insert(opened).clone()
            }
        };
        let (shared, remote) = (&self.shared, &self.remote);
        let mut call = cmd("XREADGROUP");
        call.arg("GROUP").arg(&*shared.member.group).arg(&*shared.member.consumer);
        call.arg("COUNT").arg(room).arg("BLOCK").arg(millis(wait)).arg("STREAMS").arg(&*remote.stream).arg(">");
        let answer = call.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(error::ends_connection) {
            self.connection = None;
            self.reader.0.store(0, Ordering::Release);
        }
        convert::read(answer?).ok_or_else(strange)
    }

    async fn failed(&mut self, error: RedisError, first: bool) {
        let Self { shared, remote, .. } = self;
        shared.set_connected(false);
        let no_group = error::is_no_group(&error);
        if no_group {
            shared.lose_session();
            self.cursor = START.to_owned();
        }
        let error = remote.refused("receive", error);
        tracing::warn!(error = %report(&error), "reading failed; it is tried again");
        if first && error.kind() == TransportErrorKind::Unauthorized {
            shared.refuse(error);
        } else if no_group && let Err(error) = admin::make_group(remote, &shared.member.group, "receive").await {
            tracing::warn!(error = %report(&error), "the group cannot be made again");
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn strange() -> RedisError {
    (redis::ErrorKind::UnexpectedReturnType, "no answer to such a question").into()
}
