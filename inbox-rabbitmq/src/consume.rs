//! The task that keeps a consumer alive: connection, channel and subscription, again and again, until the transport is
//! closed. A session is one channel.

use std::{
    collections::VecDeque,
    io,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use inbox_core::{Backoff, Capacity, Delivery, InFlight, Session, Source, TransportError, TransportErrorKind, report};
use lapin::{
    Channel, Consumer,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::RabbitMqConfig,
    connection::{self, Connected},
    convert, error,
    settle::{self, Answers, Held, Returned},
};

/// Between attempts to consume again.
const AWAY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) };
/// A session that ends sooner than this is one more failed attempt: what ends it may do so each time.
const STEADY: Duration = Duration::from_secs(2);
/// How often it is looked whether a channel that says nothing is still there, and what has waited for too long.
const LOOK: Duration = Duration::from_secs(1);
/// All that is done here is done for a `receive`.
const OPERATION: &str = "receive";
/// How many deliveries are taken from lapin before receipts are looked after again.
const AT_ONCE: usize = 256;

/// What the task and the transport share.
pub(crate) struct Shared {
    pub(crate) config: RabbitMqConfig,
    source: Arc<str>,
    pub(crate) in_flight: InFlight<Held>,
    pub(crate) returned: Returned,
    /// What waits for a `receive`, and since when.
    buffer: Mutex<VecDeque<(Instant, Delivery)>>,
    /// Something was put into the buffer.
    pub(crate) arrived: Notify,
    /// How many deliveries may be out: the most that a caller of `receive` ever had room for, with what it held then.
    room: watch::Sender<u16>,
    /// Why the broker has refused the first subscription, for the next `receive`.
    refused: Mutex<Option<TransportError>>,
    pub(crate) closed: CancellationToken,
    consuming: AtomicBool,
}

/// One channel with its subscription.
pub(crate) struct Subscription {
    consumer: Consumer,
    channel: Channel,
    answers: Arc<Answers>,
    since: Instant,
}

/// Why a session ended.
enum End {
    Closed,
    /// The broker ended the subscription alone: the queue was deleted, or its node went away.
    Cancelled,
    Broken(lapin::Error),
    /// Lapin knows that the channel has ended, and has not said so.
    Silent,
}

impl Shared {
    pub(crate) fn new(config: RabbitMqConfig) -> Result<Self, TransportError> {
        let source = config.required_queue()?.into();
        Ok(Self {
            config,
            source,
            in_flight: InFlight::new(),
            returned: Returned::default(),
            buffer: Mutex::default(),
            arrived: Notify::new(),
            room: watch::Sender::new(0),
            refused: Mutex::default(),
            closed: CancellationToken::new(),
            consuming: AtomicBool::new(true),
        })
    }

    fn buffer(&self) -> MutexGuard<'_, VecDeque<(Instant, Delivery)>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn consumes(&self, does: bool) {
        self.consuming.store(does, Ordering::Release);
    }

    fn refuse(&self, error: TransportError) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.arrived.notify_one();
    }

    pub(crate) fn refusal(&self) -> Option<TransportError> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_consuming(&self) -> bool {
        self.consuming.load(Ordering::Acquire)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.buffer().len()
    }

    /// Lets the broker hand out what a caller has room for, up to the configured prefetch.
    pub(crate) fn make_room(&self, capacity: Capacity) {
        let buffer = self.buffer();
        let held = self.in_flight.len().saturating_sub(buffer.len());
        drop(buffer);
        let all = u16::try_from(capacity.messages.saturating_add(held)).unwrap_or(u16::MAX).min(self.config.prefetch);
        self.room.send_if_modified(|room| {
            let more = all > *room;
            *room = all.max(*room);
            more
        });
    }

    /// Takes from the buffer what fits.
    pub(crate) fn hand_over(&self, capacity: Capacity) -> Vec<Delivery> {
        let mut buffer = self.buffer();
        let (mut bytes, mut fits) = (0_usize, 0);
        for (_, delivery) in buffer.iter().take(capacity.messages) {
            bytes = bytes.saturating_add(delivery.message.size());
            if fits > 0 && bytes > capacity.bytes {
                break;
            }
            fits += 1;
        }
        buffer.drain(..fits).map(|(_, delivery)| delivery).collect()
    }

    /// Takes what nobody has asked for in half the broker's timeout, which counts from when it was sent. Given back, it
    /// comes again at once, and the channel is not lost for a consumer that is paused or slow.
    fn take_old(&self) -> Vec<Held> {
        let Some(timeout) = self.config.consumer_timeout else { return Vec::new() };
        // In one step, so that nobody takes it for what a caller holds.
        let mut buffer = self.buffer();
        let count = buffer.iter().take_while(|(since, _)| since.elapsed() > timeout / 2).count();
        self.in_flight.settle(buffer.drain(..count).map(|(_, delivery)| delivery.receipt).collect())
    }

    fn put(&self, answers: &Arc<Answers>, delivery: lapin::message::Delivery) {
        // In one step, as above.
        let mut buffer = self.buffer();
        let delivery = self.take(answers, delivery);
        buffer.push_back((Instant::now(), delivery));
    }

    fn take(&self, answers: &Arc<Answers>, delivery: lapin::message::Delivery) -> Delivery {
        let message = convert::message(&delivery.properties, delivery.data, &self.config.names);
        let print = settle::print(&message);
        let delivery_count = convert::delivery_count(&delivery.properties);
        answers.came(delivery.delivery_tag);
        let held = Held { answers: Arc::clone(answers), tag: delivery.delivery_tag, print };
        Delivery {
            receipt: self.in_flight.hold(&answers.session, held),
            message,
            source: Source::new(Arc::clone(&self.source)),
            partition: None,
            delivery_count,
            suspect: delivery.redelivered && !self.returned.take(print),
        }
    }

    /// Serves a session until it ends.
    async fn serve(&self, subscription: &mut Subscription) -> End {
        // Beside everything else: what is given back to a channel that ends is not to keep its end from being seen.
        let mut giving_back = FuturesUnordered::new();
        let mut look = tokio::time::interval(LOOK);
        let mut wanted = self.room.subscribe();
        let answers = Arc::clone(&subscription.answers);
        let mut late = pin!(answers.tell_late());
        loop {
            let limit = answers.room();
            let more = async { wanted.wait_for(|room| *room > limit).await.map(|room| *room) };
            let Subscription { consumer, channel, .. } = &mut *subscription;
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return End::Closed,
                Ok(room) = more => {
                    tokio::select! {
                        biased;
                        () = self.closed.cancelled() => return End::Closed,
                        widened = self.widen(subscription, room) => if let Err(error) = widened {
                            return End::Broken(error);
                        },
                    }
                }
                () = self.in_flight.dropped() => {
                    giving_back.push(settle::give_back(self.in_flight.take_dropped(), &self.returned));
                }
                Some(()) = giving_back.next() => {}
                never = &mut late => match never {},
                _ = look.tick() => {
                    if !channel.status().connected() {
                        // It may be said meanwhile, in better words.
                        return match consumer.next().now_or_never() {
                            Some(Some(Err(error))) => End::Broken(error),
                            _ => End::Silent,
                        };
                    }
                    giving_back.push(settle::give_back(self.take_old(), &self.returned));
                }
                next = consumer.next() => {
                    let mut next = Some(next);
                    for _ in 0..AT_ONCE {
                        match next.take().or_else(|| consumer.next().now_or_never()) {
                            Some(Some(Ok(delivery))) => self.put(&answers, delivery),
                            Some(Some(Err(error))) => return End::Broken(error),
                            Some(None) => return End::Cancelled,
                            None => break,
                        }
                    }
                    self.arrived.notify_one();
                }
            }
        }
    }

    /// Lets the broker have more out. A prefetch is that of the consumers which come after it, so this one makes place for
    /// another one on the same channel, and what is out stays out. Until it is settled it comes on top: an inbox has room for
    /// all at its first `receive`, so this is for callers that count otherwise.
    async fn widen(&self, subscription: &mut Subscription, room: u16) -> Result<(), lapin::Error> {
        let Subscription { consumer, channel, answers, .. } = subscription;
        let work = async {
            channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
            // Behind what came before the answer is the stream's end.
            while let Some(delivery) = consumer.next().await {
                self.put(answers, delivery?);
            }
            self.arrived.notify_one();
            *consumer = consumer_of(channel, &self.source, room).await?;
            Ok(())
        };
        let done: Result<(), lapin::Error> = tokio::time::timeout(self.config.connect_timeout, work)
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        done.map(|()| subscription.answers.widened(room))
    }

    /// Nothing of the session settles anything any more, and nothing of it is handed over.
    fn end(&self, session: &Session) {
        self.consumes(false);
        let mut buffer = self.buffer();
        // Under the lock: whoever has heard that it is lost finds nothing of it any more.
        session.mark_lost();
        let gone = (std::mem::take(&mut *buffer), self.in_flight.forget(session));
        drop(buffer);
        // Outside the lock: dropping a receipt calls back.
        drop(gone);
        self.returned.clear();
    }
}

/// Subscribes on a channel.
async fn consumer_of(channel: &Channel, queue: &str, prefetch: u16) -> Result<Consumer, lapin::Error> {
    // Before the subscription, or the whole queue would be sent here at once. Each consumer has its own, also of quorum
    // queues, which know no other.
    channel.basic_qos(prefetch, BasicQosOptions { global: false }).await?;
    // No two consumers of a channel have the same prefetch, and an operator sees it.
    let tag = format!("inbox-{prefetch}").into();
    channel.basic_consume(queue.into(), tag, BasicConsumeOptions::default(), FieldTable::default()).await
}

/// Opens a channel and subscribes to the queue.
async fn on_channel(shared: &Shared, connected: &Connected, deadline: Instant) -> Result<Subscription, TransportError> {
    let (config, queue) = (&shared.config, &*shared.source);
    let room = *shared.room.borrow();
    let subscribing = async {
        let channel = connected.amqp.create_channel().await?;
        let consumer = consumer_of(&channel, queue, room).await?;
        Ok((channel, consumer))
    };
    let subscribed =
        tokio::time::timeout_at(deadline, subscribing).await.map_err(|_| connection::silent(config, OPERATION))?;
    let (channel, consumer) = subscribed.map_err(|error| {
        let context = refusal(config, queue, &error);
        error::of(OPERATION, error).context(context)
    })?;
    let answers = Arc::new(Answers::new(channel.clone(), room));
    Ok(Subscription { consumer, channel, answers, since: Instant::now() })
}

/// Which setting a refused subscription is about.
fn refusal(config: &RabbitMqConfig, queue: &str, error: &lapin::Error) -> String {
    let (queue, vhost) = (queue.escape_debug(), config.vhost.escape_debug());
    match error::kind_of(error) {
        TransportErrorKind::NotFound => format!(
            "the queue `{queue}` does not exist in the virtual host `{vhost}`; `inbox::provision(url)` creates it"
        ),
        TransportErrorKind::Unauthorized => format!(
            "the user `{}` may not read the queue `{queue}`, or another consumer has it for itself",
            config.user.escape_debug()
        ),
        _ => format!("the queue `{queue}` cannot be consumed"),
    }
}

/// Consumes, from the first `receive` until the transport is closed. Only then can the broker be told for how much there is
/// room.
pub(crate) async fn keep(shared: Arc<Shared>, connected: Connected, ended: watch::Sender<bool>) {
    let mut connected = Some(connected);
    let mut asked = shared.room.subscribe();
    tokio::select! {
        () = shared.closed.cancelled() => {}
        // The sender lives as long as this.
        _ = asked.wait_for(|room| *room > 0) => {}
    }
    let (mut failures, mut first) = (0, true);
    while let Some(mut subscription) = again(&shared, &mut connected, &mut failures, first).await {
        if !first {
            tracing::info!(queue = &*shared.source, "consuming again");
        }
        first = false;
        // Of an attempt before.
        drop(shared.refusal());
        shared.consumes(true);
        let end = shared.serve(&mut subscription).await;
        shared.end(&subscription.answers.session);
        match end {
            End::Closed => {
                subscription.answers.tell_all();
                settle::arrived(&subscription.channel, subscription.consumer.tag(), &shared.source).await;
                // While its channel is there: closing both at once is an error to lapin.
                if let Some(connected) = connected.take() {
                    connected.close().await;
                }
                break;
            }
            End::Cancelled => {
                tracing::warn!(
                    queue = &*shared.source,
                    "the broker has cancelled the consumer: was the queue deleted?"
                );
            }
            End::Silent => {
                tracing::warn!(
                    queue = &*shared.source,
                    "the channel has ended without a word; what was held comes again"
                );
            }
            End::Broken(error) => {
                let error = report(&error);
                tracing::warn!(queue = &*shared.source, error, "the channel has ended; what was held comes again");
            }
        }
        failures = if subscription.since.elapsed() < STEADY { failures + 1 } else { 0 };
        // The channel ends here, before the next one is opened.
    }
    if let Some(connected) = connected {
        connected.close().await;
    }
    // Nobody may be waiting for it.
    ended.send_replace(true);
}

/// Subscribes, however long it takes; `None` when the transport is closed first.
///
/// Nothing that a broker answers ends this: permissions, virtual hosts and queues come back, and a service that has
/// given up does not. What it answers to the first attempts is told to `receive` besides: that is a wrong setting.
async fn again(
    shared: &Shared,
    connected: &mut Option<Connected>,
    failures: &mut u32,
    first: bool,
) -> Option<Subscription> {
    loop {
        let pause = if *failures == 0 { Duration::ZERO } else { AWAY.wait(*failures, fastrand::f64()) };
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => return None,
            () = tokio::time::sleep(pause) => {}
        }
        let subscribed = tokio::select! {
            biased;
            () = shared.closed.cancelled() => return None,
            subscribed = subscribe(shared, connected) => subscribed,
        };
        match subscribed {
            Ok(subscription) => return Some(subscription),
            Err(error) => {
                *failures = failures.saturating_add(1);
                shared.consumes(false);
                tracing::warn!(queue = &*shared.source, error = report(&error), "not consuming yet");
                if first && !error.is_retryable() {
                    shared.refuse(error);
                }
            }
        }
    }
}

/// Subscribes once, on a new connection when there is none that can be used.
async fn subscribe(shared: &Shared, connected: &mut Option<Connected>) -> Result<Subscription, TransportError> {
    let config = &shared.config;
    let deadline = Instant::now() + config.connect_timeout;
    if connected.as_ref().is_none_or(|connected| !connected.is_open()) {
        *connected = None;
        *connected = Some(connection::attempt(config, OPERATION, deadline).await?);
    }
    let Some(open) = &*connected else { return Err(TransportError::new(TransportErrorKind::Unavailable, OPERATION)) };
    let subscribed = on_channel(shared, open, deadline).await;
    if subscribed.as_ref().is_err_and(|error| error.kind() == TransportErrorKind::Unavailable) {
        // Whatever it is that does not answer is not kept.
        open.cut();
        *connected = None;
    }
    subscribed
}
