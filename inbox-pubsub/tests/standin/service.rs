//! What a Pub/Sub service keeps: topics, subscriptions, snapshots, and the leases of what was delivered. No I/O.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant, SystemTime},
};

use super::proto::{PublishRequest, PubsubMessage, PullRequest, Time};

/// How many messages a response has at most.
const RESPONSE: usize = 50;
/// How often leases are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// One subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) topic: String,
    pub(crate) ordered: bool,
    pub(crate) exactly_once: bool,
    pub(crate) lease: u64,
    next: u64,
    /// What is not acknowledged, in the order of publishing.
    unacked: BTreeMap<u64, Entry>,
    /// Where in `unacked` what has an acknowledgement id is.
    leased: HashMap<String, u64>,
    /// How many deliveries of a stream are out.
    out: HashMap<u64, usize>,
    /// What was taken back though its acknowledgement id is still around.
    ended: HashMap<String, PubsubMessage>,
    /// When leases were looked at.
    looked: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Entry {
    message: PubsubMessage,
    delivery: i32,
    lease: Option<Lease>,
}

#[derive(Clone, Debug)]
struct Lease {
    ack_id: String,
    until: Instant,
    client: String,
    stream: u64,
}

/// A message that is handed out.
pub(crate) struct Handed {
    pub(crate) ack_id: String,
    pub(crate) message: PubsubMessage,
    pub(crate) delivery: i32,
}

impl Subscription {
    pub(crate) fn new(topic: &str, ordered: bool, exactly_once: bool, lease: u64) -> Self {
        Self {
            topic: topic.to_owned(),
            ordered,
            exactly_once,
            lease,
            next: 0,
            unacked: BTreeMap::new(),
            leased: HashMap::new(),
            out: HashMap::new(),
            ended: HashMap::new(),
            looked: None,
        }
    }

    pub(crate) fn add(&mut self, message: PubsubMessage) {
        self.unacked.insert(self.next, Entry { message, delivery: 1, lease: None });
        self.next += 1;
    }

    /// How many deliveries are out.
    pub(crate) fn all_out(&self) -> usize {
        self.leased.len()
    }

    /// Hands out what may go to this stream now: within its limit, and of a key in order, to one client at a time.
    pub(crate) fn hand_out(&mut self, stream: u64, pull: &PullRequest, ack_id: &mut u64) -> Vec<Handed> {
        self.end_leases();
        let limit =
            usize::try_from(pull.max_outstanding_messages).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let out = self.out.entry(stream).or_default();
        let room = limit.saturating_sub(*out).min(RESPONSE);
        let mut handed = Vec::new();
        if room == 0 || self.unacked.len() == self.leased.len() {
            return handed;
        }
        let mut elsewhere: HashSet<&str> = HashSet::new();
        let until = Instant::now() + Duration::from_secs(u64::try_from(pull.ack_deadline_seconds).unwrap_or(10));
        for (seq, entry) in &mut self.unacked {
            if handed.len() == room {
                break;
            }
            let key = entry.message.ordering_key.as_str();
            let in_order = self.ordered && !key.is_empty();
            if let Some(lease) = &entry.lease {
                if in_order && lease.client != pull.client_id {
                    elsewhere.insert(key);
                }
                continue;
            }
            if in_order && elsewhere.contains(key) {
                continue;
            }
            *ack_id += 1;
            let id = format!("a{ack_id:08}");
            let client = pull.client_id.clone();
            entry.lease = Some(Lease { ack_id: id.clone(), until, client, stream });
            self.leased.insert(id.clone(), *seq);
            *out += 1;
            handed.push(Handed { ack_id: id, message: entry.message.clone(), delivery: entry.delivery });
        }
        handed
    }

    fn end_leases(&mut self) {
        let now = Instant::now();
        // There may be thousands, and this is asked every few milliseconds.
        if self.looked.is_some_and(|at| now < at + LOOK) {
            return;
        }
        self.looked = Some(now);
        let has_ended = |seq: &&u64| self.unacked[*seq].lease.as_ref().is_some_and(|lease| now >= lease.until);
        let mut ended: Vec<u64> = self.leased.values().filter(has_ended).copied().collect();
        ended.sort_unstable();
        for seq in ended {
            self.take_back(seq);
        }
    }

    /// Takes back a delivery and, of an ordered key, all later ones: they come again behind it.
    fn take_back(&mut self, seq: u64) {
        let Some(key) = self.unacked.get(&seq).map(|entry| entry.message.ordering_key.clone()) else { return };
        let in_order = self.ordered && !key.is_empty();
        let end = if in_order { u64::MAX } else { seq + 1 };
        for (_, entry) in self.unacked.range_mut(seq..end) {
            if (!in_order || entry.message.ordering_key == key)
                && let Some(lease) = entry.lease.take()
            {
                self.leased.remove(&lease.ack_id);
                no_longer_out(&mut self.out, lease.stream);
                self.ended.insert(lease.ack_id, entry.message.clone());
                entry.delivery += 1;
            }
        }
    }

    /// The message, if the id is that of a delivery that is out.
    pub(crate) fn of(&mut self, ack_id: &str) -> Option<&PubsubMessage> {
        self.end_leases();
        self.leased.get(ack_id).map(|seq| &self.unacked[seq].message)
    }

    pub(crate) fn acknowledge(&mut self, ack_id: &str) -> Option<PubsubMessage> {
        let seq = self.leased.remove(ack_id)?;
        let entry = self.unacked.remove(&seq)?;
        no_longer_out(&mut self.out, entry.lease?.stream);
        Some(entry.message)
    }

    pub(crate) fn extend(&mut self, ack_id: &str, lease: Duration) {
        if let Some(lease_of) = self.leased.get(ack_id).and_then(|seq| self.unacked.get_mut(seq)?.lease.as_mut()) {
            lease_of.until = Instant::now() + lease;
        }
    }

    /// The message, also one that was taken back with an earlier one of its key.
    pub(crate) fn give_back(&mut self, ack_id: &str) -> Option<PubsubMessage> {
        if let Some(seq) = self.leased.get(ack_id) {
            self.take_back(*seq);
        }
        self.ended.remove(ack_id)
    }

    /// What is not acknowledged.
    fn snapshot(&self) -> Vec<PubsubMessage> {
        self.unacked.values().map(|entry| entry.message.clone()).collect()
    }

    fn seek(&mut self, messages: &[PubsubMessage]) {
        self.unacked.clear();
        self.leased.clear();
        self.out.clear();
        messages.iter().for_each(|message| self.add(message.clone()));
    }
}

/// Everything, by full names.
#[derive(Debug, Default)]
pub(crate) struct Service {
    pub(crate) topics: HashSet<String>,
    pub(crate) subscriptions: HashMap<String, Subscription>,
    snapshots: HashMap<String, Vec<PubsubMessage>>,
    next_message: u64,
    next_ack: u64,
}

impl Service {
    /// The ids of what was published; `None`: there is no such topic.
    pub(crate) fn publish(&mut self, request: PublishRequest) -> Option<Vec<String>> {
        if !self.topics.contains(&request.topic) {
            return None;
        }
        let mut ids = Vec::new();
        for mut message in request.messages {
            self.next_message += 1;
            message.message_id = self.next_message.to_string();
            message.publish_time = Some(now());
            ids.push(message.message_id.clone());
            for subscription in self.subscriptions.values_mut().filter(|sub| sub.topic == request.topic) {
                subscription.add(message.clone());
            }
        }
        Some(ids)
    }

    pub(crate) fn hand_out(&mut self, stream: u64, pull: &PullRequest) -> Option<Vec<Handed>> {
        let subscription = self.subscriptions.get_mut(&pull.subscription)?;
        Some(subscription.hand_out(stream, pull, &mut self.next_ack))
    }

    /// When a snapshot expires that is taken now; `None`: there is no such subscription.
    pub(crate) fn snapshot(&mut self, name: &str, subscription: &str) -> Option<Time> {
        let messages = self.subscriptions.get(subscription)?.snapshot();
        let oldest = messages.first().and_then(|message| message.publish_time.clone()).unwrap_or_else(now);
        self.snapshots.insert(name.to_owned(), messages);
        Some(Time { seconds: oldest.seconds + 7 * 86_400, nanos: oldest.nanos })
    }

    pub(crate) fn forget_snapshot(&mut self, name: &str) -> bool {
        self.snapshots.remove(name).is_some()
    }

    pub(crate) fn seek(&mut self, subscription: &str, snapshot: &str) -> bool {
        let (Some(messages), Some(subscription)) =
            (self.snapshots.get(snapshot), self.subscriptions.get_mut(subscription))
        else {
            return false;
        };
        subscription.seek(messages);
        true
    }
}

fn no_longer_out(out: &mut HashMap<u64, usize>, stream: u64) {
    if let Some(out) = out.get_mut(&stream) {
        *out -= 1;
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos().cast_signed() }
}
