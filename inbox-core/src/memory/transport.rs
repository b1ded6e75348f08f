//! An in-process broker: topics, consumer groups, competing consumers.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering as Atomic},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    capability::{Capabilities, Lease, MaxAge, Ordering},
    clock,
    error::{TransportError, TransportErrorKind},
    message::{Context, Message},
    publisher::Publisher,
    transport::{Acked, Capacity, Delivery, Receipt, ReceiptOwner, Session, Source, Transport},
};

/// What memory promises: a queue without partitions, in which a key is with one consumer of a group at a time.
const CAPABILITIES: Capabilities = Capabilities {
    name: "memory",
    ordering: Ordering::Key,
    lease: Lease::Session,
    delivery_count: true,
    suspect_flag: true,
    exclusive_keys: true,
    max_body: None,
    durable: false,
};

/// A broker that lives in this process. Clones are handles of the same broker; there is no other way to reach it, no
/// registry and no global state.
///
/// Every message is kept until the last handle is dropped, so that a group made later reads the topic from its start.
#[derive(Clone, Default)]
pub struct MemoryBroker {
    topics: Arc<Mutex<HashMap<String, Arc<Topic>>>>,
}

impl MemoryBroker {
    /// A broker without topics; they come into being when they are named.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A consumer of `group` on `topic`. Groups are independent of each other; several transports of one group compete
    /// for its messages, and one key is never with two of them at once. A new group begins with the first message of
    /// the topic.
    #[must_use]
    pub fn transport(&self, topic: &str, group: &str) -> MemoryTransport {
        let topic = self.topic(topic);
        MemoryTransport {
            group: topic.group(group),
            topic,
            session: Mutex::new(Session::new()),
            closed: AtomicBool::new(false),
        }
    }

    /// A publisher to `topic`.
    #[must_use]
    pub fn publisher(&self, topic: &str) -> MemoryPublisher {
        MemoryPublisher { topic: self.topic(topic), closed: AtomicBool::new(false) }
    }

    /// Everything that was published to `topic`, in order. For tests.
    #[must_use]
    pub fn published(&self, topic: &str) -> Vec<Message> {
        lock(&self.topic(topic).state).log.clone()
    }

    /// How many messages of `topic` the group has not acked yet.
    #[must_use]
    pub fn backlog(&self, topic: &str, group: &str) -> u64 {
        let topic = self.topic(topic);
        let group = topic.group(group);
        let published = lock(&topic.state).log.len() as u64;
        published - lock(&group.state).acked
    }

    fn topic(&self, name: &str) -> Arc<Topic> {
        let mut topics = lock(&self.topics);
        Arc::clone(topics.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Topic { name: name.into(), state: Mutex::default(), changed: Arc::new(Notify::new()) })
        }))
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("topics", &lock(&self.topics).len()).finish()
    }
}

// No code of anybody else runs under these locks, so what a poisoned one guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Topic {
    name: Arc<str>,
    state: Mutex<TopicState>,
    /// Somebody may have something to receive: a message was published, given back, or a transport was closed.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct TopicState {
    log: Vec<Message>,
    groups: HashMap<String, Arc<Group>>,
}

impl Topic {
    fn group(&self, name: &str) -> Arc<Group> {
        let mut state = lock(&self.state);
        Arc::clone(state.groups.entry(name.to_owned()).or_insert_with(|| {
            Arc::new_cyclic(|this| Group {
                this: this.clone(),
                changed: Arc::clone(&self.changed),
                state: Mutex::default(),
            })
        }))
    }
}

/// One group's position on one topic. It owns the receipts, so that a dropped one comes again to whichever consumer of
/// the group asks next. Lock order: topic, then group.
struct Group {
    this: Weak<Self>,
    changed: Arc<Notify>,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    /// The first place of the log that nobody has looked at.
    next: usize,
    acked: u64,
    tokens: u64,
    /// Given back, or passed over because its key was with another consumer, by place in the log: lowest first.
    again: BTreeMap<usize, History>,
    out: HashMap<u64, Out>,
}

#[derive(Clone, Copy, Default)]
struct History {
    deliveries: u32,
    suspect: bool,
}

struct Out {
    at: usize,
    session: u64,
    history: History,
}

impl GroupState {
    fn give_back(&mut self, out: &Out, suspect: bool) {
        self.again.insert(out.at, History { suspect: suspect || out.history.suspect, ..out.history });
    }

    /// Gives back all that `session` holds.
    fn end(&mut self, session: u64, suspect: bool) {
        let held: Vec<u64> =
            self.out.iter().filter(|(_, out)| out.session == session).map(|(token, _)| *token).collect();
        for out in held.iter().filter_map(|token| self.out.remove(token)).collect::<Vec<_>>() {
            self.give_back(&out, suspect);
        }
    }
}

impl Group {
    fn take(&self, topic: &Topic, session: &Session, capacity: Capacity) -> Vec<Delivery> {
        let log = lock(&topic.state);
        let mut state = lock(&self.state);
        let elsewhere: HashSet<&Bytes> = state
            .out
            .values()
            .filter(|out| out.session != session.id())
            .filter_map(|out| log.log[out.at].key.as_ref())
            .collect();
        let mut taken = Vec::new();
        let mut bytes = 0_usize;
        let mut from = 0;
        while taken.len() < capacity.messages {
            let again = state.again.range(from..).next().map(|(at, history)| (*at, *history));
            let (at, history) = again.unwrap_or((state.next, History::default()));
            let Some(message) = log.log.get(at) else { break };
            if again.is_none() {
                state.next += 1;
                state.again.insert(at, history);
            }
            from = at + 1;
            if message.key.as_ref().is_some_and(|key| elsewhere.contains(key)) {
                continue;
            }
            bytes = bytes.saturating_add(message.size());
            if !taken.is_empty() && bytes > capacity.bytes {
                break;
            }
            state.again.remove(&at);
            let history = History { deliveries: history.deliveries + 1, suspect: history.suspect };
            state.tokens += 1;
            let token = state.tokens;
            state.out.insert(token, Out { at, session: session.id(), history });
            taken.push(Delivery {
                message: message.clone(),
                receipt: Receipt::new(session.clone(), token, self.this.clone()),
                source: Source::new(Arc::clone(&topic.name)).coordinates(at.to_string()),
                partition: None,
                delivery_count: Some(history.deliveries),
                suspect: history.suspect,
            });
        }
        taken
    }

    /// Takes receipts that still settle something out of the table.
    fn settle(&self, receipts: Vec<Receipt>) -> Vec<Out> {
        let mut state = lock(&self.state);
        receipts.into_iter().filter_map(|receipt| state.out.remove(&receipt.into_token())).collect()
    }
}

impl ReceiptOwner for Group {
    fn dropped(&self, token: u64) {
        let mut state = lock(&self.state);
        if let Some(out) = state.out.remove(&token) {
            state.give_back(&out, false);
            drop(state);
            self.changed.notify_waiters();
        }
    }
}

/// A consumer of a [`MemoryBroker`]. Dropped without [`close`](Transport::close) it counts as crashed: what it held
/// comes again to its group, flagged as suspect.
pub struct MemoryTransport {
    topic: Arc<Topic>,
    group: Arc<Group>,
    session: Mutex<Session>,
    closed: AtomicBool,
}

impl MemoryTransport {
    /// Test hook: the connection breaks and is made anew at once. What is held comes again to the group, flagged as
    /// suspect; its receipts settle nothing any more.
    pub fn disconnect(&self) {
        let old = std::mem::take(&mut *lock(&self.session));
        self.end(&old, true);
    }

    /// Test hook: the lease of one delivery ends, that of the message which was published as number `at` of the topic
    /// (from 0). It comes again to the group; its receipt settles nothing any more. False when it is not out here.
    pub fn lose_lease(&self, at: usize) -> bool {
        let session = lock(&self.session);
        let mut state = lock(&self.group.state);
        let found = state.out.iter().find(|(_, out)| out.at == at && out.session == session.id());
        let Some(token) = found.map(|(token, _)| *token) else { return false };
        session.mark_receipt_lost(token);
        if let Some(out) = state.out.remove(&token) {
            state.give_back(&out, false);
        }
        drop(state);
        self.group.changed.notify_waiters();
        true
    }

    fn end(&self, session: &Session, suspect: bool) {
        session.mark_lost();
        lock(&self.group.state).end(session.id(), suspect);
        self.group.changed.notify_waiters();
    }
}

impl Drop for MemoryTransport {
    fn drop(&mut self) {
        if !self.closed.load(Atomic::Acquire) {
            self.disconnect();
        }
    }
}

impl fmt::Debug for MemoryTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTransport")
            .field("session", &*lock(&self.session))
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    async fn receive(&self, capacity: Capacity) -> Result<Vec<Delivery>, TransportError> {
        loop {
            // Made before the look, so that nothing that changes after it is missed.
            let changed = self.topic.changed.notified();
            {
                let session = lock(&self.session);
                // Looked at under the session's lock, or a message could be taken for a session that close has ended.
                if self.closed.load(Atomic::Acquire) {
                    return Err(error(TransportErrorKind::Closed, "receive"));
                }
                let taken = self.group.take(&self.topic, &session, capacity);
                if !taken.is_empty() {
                    return Ok(taken);
                }
            }
            changed.await;
        }
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Result<Acked, TransportError> {
        let all = receipts.len();
        let acked = self.group.settle(receipts).len();
        lock(&self.group.state).acked += acked as u64;
        // Another consumer may have waited for a key.
        self.group.changed.notify_waiters();
        Ok(Acked { acked, lost: all - acked })
    }

    async fn release(&self, receipts: Vec<Receipt>) -> Result<(), TransportError> {
        let released = self.group.settle(receipts);
        let mut state = lock(&self.group.state);
        for out in &released {
            state.give_back(out, false);
        }
        drop(state);
        self.group.changed.notify_waiters();
        Ok(())
    }

    async fn max_age(&self) -> Result<MaxAge, TransportError> {
        Ok(MaxAge::Unbounded)
    }

    fn connected(&self) -> bool {
        !self.closed.load(Atomic::Acquire)
    }

    async fn close(&self, _deadline: Duration) -> Result<(), TransportError> {
        let session = lock(&self.session);
        self.closed.store(true, Atomic::Release);
        self.end(&session, false);
        Ok(())
    }
}

/// A publisher of a [`MemoryBroker`].
pub struct MemoryPublisher {
    topic: Arc<Topic>,
    closed: AtomicBool,
}

impl fmt::Debug for MemoryPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPublisher").field("topic", &self.topic.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for MemoryPublisher {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), TransportError>> {
        if self.closed.load(Atomic::Acquire) {
            return messages.iter().map(|_| Err(error(TransportErrorKind::Closed, "publish"))).collect();
        }
        let now = clock::now();
        let answers = messages.iter().map(|_| Ok(())).collect();
        let stored = messages.into_iter().map(|message| Message {
            stored_at: Some(now),
            context: Context::default(),
            ..message
        });
        lock(&self.topic.state).log.extend(stored);
        self.topic.changed.notify_waiters();
        answers
    }

    async fn close(&self, _deadline: Duration) -> Result<(), TransportError> {
        self.closed.store(true, Atomic::Release);
        Ok(())
    }
}

fn error(kind: TransportErrorKind, operation: &'static str) -> TransportError {
    TransportError::new(kind, operation)
}
