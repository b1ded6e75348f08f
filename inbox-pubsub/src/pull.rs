//! The tasks of a transport: one reads the stream, one looks after leases, one asks whether the service is there.
//!
//! `MessageStream` reconnects by itself for as long as the service is away, and says nothing about it; it ends with an
//! error only when the service refuses. It reads from the network only while it is asked for messages, so what is not
//! asked for waits in one response of the service at most, beside what the connection buffers.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use google_cloud_gax::error::Error;
use google_cloud_pubsub::{
    client::{Subscriber, SubscriptionAdmin},
    model::Message as Theirs,
    subscriber::{MessageStream, ShutdownBehavior, ShutdownToken, handler::Handler},
};
use inbox_core::TransportErrorKind;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::{
    admin,
    config::PubsubConfig,
    error,
    handover::{Limit, Room, Shared},
    settle,
};

/// How long a stream that may be at its limit is given to bring something before a larger one is opened.
const PROBE: Duration = Duration::from_millis(100);
/// Between two tries at a stream that was refused, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often leases are looked at.
const TICK: Duration = Duration::from_millis(250);
/// How often a service that brings nothing is asked whether it is there, and how often one that is away.
const ASK: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(1));
/// At the end: how long nothing may arrive before nothing is on its way any more, and how long that is waited for. The
/// service stops at the stream's limit; the emulator has none, and sends a hundred every 50 ms.
const DRAIN: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(1));
/// How long giving back may take at the end.
const LEAVE: Duration = Duration::from_secs(10);

type Next = Option<Result<(Theirs, Handler), Error>>;

/// Why a stream is read no longer.
enum End {
    Closed,
    /// Its limit is too small.
    Grow,
    Refused(Option<Error>),
}

/// What the tasks work with.
pub(crate) struct Reader {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: PubsubConfig,
    pub(crate) path: String,
    pub(crate) subscriber: Subscriber,
}

impl Reader {
    /// Reads streams, one after the other, until the transport is closed; then gives everything back.
    pub(crate) async fn run(self) {
        let mut limit = None;
        let mut streams = Vec::new();
        let (mut pause, mut refused_since) = (BACKOFF.0, None);
        // When the network was last waited for: what is read came at that time, or later.
        let mut since = Instant::now();
        loop {
            let Some(Some(next)) = until(&self.shared, async { Some(self.shared.limit(limit).await) }).await else {
                break;
            };
            limit = Some(next);
            let mut stream = self.open(next);
            // The client of a stream lives on until its last delivery is settled.
            streams.retain(|token: &ShutdownToken| token.shutdown().now_or_never().is_none());
            streams.push(stream.shutdown_token());
            let (end, brought) = self.read(&mut stream, next, &mut since).await;
            if brought {
                (pause, refused_since) = (BACKOFF.0, None);
            }
            self.drain(&mut stream, &end, since).await;
            drop(stream);
            match end {
                End::Closed => break,
                End::Grow => {}
                End::Refused(refused) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    if self.is_final(refused.as_ref(), since) {
                        self.shared.closed.cancelled().await;
                        break;
                    }
                    if until(&self.shared, sleep(pause)).await.is_none() {
                        break;
                    }
                    pause = (pause * 2).min(BACKOFF.1);
                }
            }
        }
        self.leave(&streams).await;
    }

    /// Takes in what a stream that ends still has, which is ours to hand over or to give back. At the end that includes what
    /// is on its way: unread it would be given to nobody until its lease ends, and with it all that follows of its keys.
    async fn drain(&self, stream: &mut MessageStream, end: &End, since: Instant) {
        let deadline = Instant::now() + DRAIN.1;
        loop {
            let next = match end {
                End::Closed if Instant::now() < deadline => timeout(DRAIN.0, stream.next()).await.ok(),
                _ => stream.next().now_or_never(),
            };
            let Some(Some(Ok((theirs, handler)))) = next else { return };
            self.shared.push(theirs, handler, since);
        }
    }

    fn open(&self, limit: Limit) -> MessageStream {
        let service = |number: usize| i64::try_from(number).ok().filter(|number| *number < 1 << 40).unwrap_or(0);
        self.subscriber
            .subscribe(&self.path)
            .set_max_lease_extension(self.config.lease)
            // Leases are looked at here, and a little earlier.
            .set_max_lease(self.config.max_lease + self.config.lease)
            .set_max_outstanding_messages(service(limit.messages))
            .set_max_outstanding_bytes(service(limit.service_bytes()))
            // Receipts of a stream that is replaced stay good.
            .set_shutdown_behavior(ShutdownBehavior::WaitForProcessing)
            .build()
    }

    /// Reads one stream. Says too whether it has brought anything.
    async fn read(&self, stream: &mut MessageStream, limit: Limit, since: &mut Instant) -> (End, bool) {
        let mut brought = false;
        loop {
            let room = self.shared.room(limit);
            if room == Room::Full {
                if until(&self.shared, self.shared.stirred()).await.is_none() {
                    return (End::Closed, brought);
                }
                continue;
            }
            let mut next = pin!(stream.next());
            let arrived: Option<Next> = match next.as_mut().now_or_never() {
                Some(next) => Some(next),
                None => {
                    self.shared.set_unread_since(None);
                    let arrived = self.wait(next, room).await;
                    *since = Instant::now();
                    self.shared.set_unread_since(Some(*since));
                    arrived
                }
            };
            match arrived {
                Some(Some(Ok((theirs, handler)))) => {
                    brought = true;
                    self.shared.push(theirs, handler, *since);
                }
                Some(Some(Err(error))) => return (End::Refused(Some(error)), brought),
                Some(None) => return (End::Refused(None), brought),
                None if self.shared.closed.is_cancelled() => return (End::Closed, brought),
                None if room == Room::Probe => return (End::Grow, brought),
                None => {}
            }
        }
    }

    /// Waits for the next message. `None`: something else is to be done first.
    async fn wait(&self, mut next: std::pin::Pin<&mut impl Future<Output = Next>>, room: Room) -> Option<Next> {
        if room == Room::Probe {
            return until(&self.shared, timeout(PROBE, next)).await?.ok();
        }
        // Never dropped half-way for less than the end: a stream that is being opened would begin anew.
        until(&self.shared, &mut next).await
    }

    /// Whether a refusal is for good: it has lasted, and the service meant it.
    fn is_final(&self, refused: Option<&Error>, since: Instant) -> bool {
        let kind = refused.map_or(TransportErrorKind::Unavailable, error::kind);
        tracing::warn!(subscription = %self.path, error = refused.map(tracing::field::display), "the stream has ended");
        let meant = matches!(
            kind,
            TransportErrorKind::NotFound | TransportErrorKind::Unauthorized | TransportErrorKind::InvalidConfig
        );
        // A subscription that was just made, or a permission that was just given, is not known everywhere at once.
        if !meant || since.elapsed() < self.config.connect_timeout {
            return false;
        }
        let why = refused.map(ToString::to_string).unwrap_or_default();
        self.shared.fail(kind, format!("`{}` is refused: {why}", self.path));
        true
    }

    /// Gives everything back and waits until the clients of all streams have sent it. The stream is gone by now, or the
    /// service would deliver to it again.
    async fn leave(&self, streams: &[ShutdownToken]) {
        let all = self.shared.take_all();
        let left = async {
            settle::give_back(all).await;
            for stream in streams {
                stream.shutdown().await;
            }
        };
        if timeout(LEAVE, left).await.is_err() {
            tracing::debug!(subscription = %self.path, "not everything was given back in time; leases end by themselves");
        }
        self.shared.left.send_replace(true);
    }
}

/// Waits for `future`, or until the transport is closed: `None`.
async fn until<T>(shared: &Shared, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = shared.closed.cancelled() => None,
        done = future => Some(done),
    }
}

/// Looks after leases and dropped receipts until the transport is closed.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while until(&shared, tick.tick()).await.is_some() {
        shared.look_after();
    }
}

/// Asks whether the service is there until the transport is closed: the client does not say when it is not.
pub(crate) async fn watch(shared: Arc<Shared>, admin: SubscriptionAdmin, path: String) {
    loop {
        let pause = if shared.connected() { ASK.0 } else { ASK.1 };
        if until(&shared, sleep(pause)).await.is_none() {
            return;
        }
        if shared.has_failed() {
            return;
        }
        if let Some(answering) = until(&shared, admin::is_answering(&admin, &path)).await {
            shared.set_connected(answering);
        }
    }
}
