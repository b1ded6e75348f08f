//! How deliveries are settled: the one file where brokers differ.
//!
//! Acknowledgements share an answer where they can: what is acked waits a moment for what came before it, see
//! [`tags`](crate::tags). A broker looks for each single one among all that are unanswered, and they come by the thousand.
//!
//! An answer is handed to lapin under the lock of the session's tags, by its channel, which puts it behind those before it
//! when its future is first polled. (A delivery's own acker has a task of its own for each, and no order.) None is awaited
//! longer than its session lives: an answer that is handed to lapin while it takes a connection down is forgotten there,
//! and its future never ends.

use std::{
    collections::HashMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{FutureExt, future::join_all};
use inbox_core::{Message, Session};
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions, QueueDeclareOptions},
    types::{FieldTable, ShortString},
};
use tokio::sync::Notify;

use crate::tags::Tags;

/// How long is waited for a broker that is left.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long an acknowledgement waits for what came before it: longer than the transaction of another lane takes, or each
/// would need an answer of its own. What is retried may be held for much longer.
const GATHER: Duration = Duration::from_millis(200);

/// What settles a delivery.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) answers: Arc<Answers>,
    /// Its number in the channel, by which deliveries are ordered.
    pub(crate) tag: u64,
    /// By which it is recognised when it comes back.
    pub(crate) print: u64,
}

/// What the broker is told of a session's deliveries.
#[derive(Debug)]
pub(crate) struct Answers {
    channel: Channel,
    pub(crate) session: Session,
    /// The prefetch of the consumer: how many deliveries the broker lets be unanswered.
    room: AtomicU16,
    tags: Mutex<Tags>,
    /// Something waits for what came before it.
    gathered: Notify,
}

/// An answer that lapin has; ends when it is written.
type Answer = Pin<Box<dyn Future<Output = lapin::Result<()>> + Send>>;

impl Answers {
    pub(crate) fn new(channel: Channel, room: u16) -> Self {
        let (session, room) = (Session::new(), AtomicU16::new(room));
        Self { channel, session, room, tags: Mutex::default(), gathered: Notify::new() }
    }

    pub(crate) fn room(&self) -> u16 {
        self.room.load(Ordering::Relaxed)
    }

    pub(crate) fn widened(&self, room: u16) {
        self.room.store(room, Ordering::Relaxed);
    }

    fn tags(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A delivery has come.
    pub(crate) fn came(&self, tag: u64) {
        self.tags().came(tag);
    }

    /// Hands an answer to lapin; to be called under the lock.
    fn hand_over(answer: impl Future<Output = lapin::Result<()>> + Send + 'static) -> Answer {
        let mut answer: Answer = Box::pin(answer);
        match answer.as_mut().now_or_never() {
            Some(written) => Box::pin(std::future::ready(written)),
            None => answer,
        }
    }

    fn say_acked(&self, tag: u64, multiple: bool) -> Answer {
        let channel = self.channel.clone();
        Self::hand_over(async move { channel.basic_ack(tag, BasicAckOptions { multiple }).await })
    }

    /// Whether these are acknowledged: written, or kept for a moment by a session that lives.
    async fn ack(&self, done: Vec<u64>) -> bool {
        let answer = {
            let mut tags = self.tags();
            tags.ack(done, Instant::now());
            let passed = tags.passed().map(|tag| self.say_acked(tag, true));
            if tags.crowd(self.room()) {
                // Not waited for: what it would wait for is not theirs.
                drop(self.late(&mut tags, Instant::now()));
            } else if tags.waits() {
                self.gathered.notify_one();
            }
            passed
        };
        match answer {
            Some(answer) => self.is_written(answer).await,
            None => !self.session.is_lost(),
        }
    }

    /// Tells the broker of what has waited for long enough, as long as the session lives.
    pub(crate) async fn tell_late(&self) -> Infallible {
        loop {
            self.gathered.notified().await;
            tokio::time::sleep(GATHER).await;
            let mut tags = self.tags();
            // Written or not: who acked has been answered. When it is not, the session has ended.
            drop(self.late(&mut tags, Instant::now() - GATHER));
            if tags.waits() {
                self.gathered.notify_one();
            }
        }
    }

    /// Tells the broker of everything that is acked, before the channel is left.
    pub(crate) fn tell_all(&self) {
        drop(self.late(&mut self.tags(), Instant::now()));
    }

    fn late(&self, tags: &mut Tags, since: Instant) -> Vec<Answer> {
        let passed = tags.passed().map(|tag| self.say_acked(tag, true));
        passed.into_iter().chain(tags.late(since).into_iter().map(|tag| self.say_acked(tag, false))).collect()
    }

    fn give_back(&self, tag: u64) -> Answer {
        let channel = self.channel.clone();
        // `nack`, not `reject`: quorum queues of RabbitMQ 4 count the latter towards the delivery limit.
        let options = BasicNackOptions { multiple: false, requeue: true };
        let mut tags = self.tags();
        let answer = Self::hand_over(async move { channel.basic_nack(tag, options).await });
        tags.given_back(tag);
        answer
    }

    /// Whether an answer was written.
    async fn is_written(&self, answer: Answer) -> bool {
        tokio::select! {
            biased;
            written = answer => written.is_ok(),
            () = self.session.lost() => false,
        }
    }
}

/// Acknowledges; how many of them by a session that lives. Of one that ends within a moment they may come again.
pub(crate) async fn ack(held: Vec<Held>) -> usize {
    let mut sessions: Vec<(Arc<Answers>, Vec<u64>)> = Vec::new();
    for Held { answers, tag, .. } in held {
        match sessions.iter_mut().find(|(of, _)| Arc::ptr_eq(of, &answers)) {
            Some((_, tags)) => tags.push(tag),
            None => sessions.push((answers, vec![tag])),
        }
    }
    let mut acked = 0;
    for (answers, tags) in sessions {
        let count = tags.len();
        acked += if answers.ack(tags).await { count } else { 0 };
    }
    acked
}

/// Gives deliveries back to the queue, in the order in which they came: a queue puts each at its old place, and hands it
/// out again at once.
pub(crate) async fn give_back(mut held: Vec<Held>, returned: &Returned) {
    if held.is_empty() {
        return;
    }
    held.sort_unstable_by_key(|held| held.tag);
    returned.note(held.iter().map(|held| held.print));
    // All are handed to lapin first and awaited then: one by one, each would wait for its own write.
    let given: Vec<_> = held.iter().map(|held| (&held.answers, held.answers.give_back(held.tag))).collect();
    let written = given.into_iter().map(|(answers, answer)| answers.is_written(answer));
    let lost = join_all(written).await.into_iter().filter(|written| !written).count();
    if lost > 0 {
        // The channel has ended: the broker gives them back by itself.
        tracing::debug!(lost, "deliveries were not given back");
    }
}

/// Waits until the queue has every answer that was given on a channel which is to end.
///
/// While a quorum queue has not told of the last ones, the channel keeps further ones back, and those end with it. So it is
/// asked twice about the queue: once the first question is answered it has been told, and sends the rest before the second.
pub(crate) async fn arrived(channel: &Channel, consumer: ShortString, queue: &str) {
    let asking = async {
        channel.basic_cancel(consumer, BasicCancelOptions::default()).await?;
        for _ in 0..2 {
            let options = QueueDeclareOptions::default().passive();
            channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        }
        Ok::<(), lapin::Error>(())
    };
    if !matches!(tokio::time::timeout(FAREWELL, asking).await, Ok(Ok(()))) {
        tracing::debug!(
            "the last acknowledgements may not have arrived: their messages come again, and are known then"
        );
    }
}

/// What was given back by us and may come again: the broker marks it as redelivered, as it marks what was in flight when
/// a consumer died.
#[derive(Debug, Default)]
pub(crate) struct Returned(Mutex<HashMap<u64, u32>>);

impl Returned {
    /// More than a channel can have out; others may have taken what never came back.
    const MOST: usize = 100_000;

    fn note(&self, given: impl Iterator<Item = u64>) {
        let mut prints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if prints.len() > Self::MOST {
            prints.clear();
        }
        for print in given {
            *prints.entry(print).or_default() += 1;
        }
    }

    /// Whether a redelivered message is one that was given back, each time for one.
    pub(crate) fn take(&self, print: u64) -> bool {
        let mut prints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = prints.get_mut(&print) else { return false };
        *count -= 1;
        if *count == 0 {
            prints.remove(&print);
        }
        true
    }

    /// The session has ended: from now on what comes again may have been in flight.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A number by which this process knows a message again. Two messages with one may be mixed up, which costs a wrong hint.
pub(crate) fn print(message: &Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    match &message.id {
        Some(id) => id.hash(&mut hasher),
        None => message.body.hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use inbox_core::Bytes;

    use super::*;

    #[test]
    fn what_was_given_back_is_known_once() {
        let returned = Returned::default();
        returned.note([7, 7, 8].into_iter());
        assert!(returned.take(7) && returned.take(7) && !returned.take(7));
        assert!(!returned.take(9));
        returned.clear();
        assert!(!returned.take(8));
    }

    #[test]
    fn a_message_is_known_by_its_id() {
        let message = |id: &'static str, body: &'static str| Message::new(Bytes::from(body)).id(id);
        assert_eq!(print(&message("1", "a")), print(&message("1", "b")));
        assert_ne!(print(&message("1", "a")), print(&message("2", "a")));
        let nameless = |body: &'static str| print(&Message::new(Bytes::from(body)));
        assert!(nameless("a") == nameless("a") && nameless("a") != nameless("b"));
    }
}
