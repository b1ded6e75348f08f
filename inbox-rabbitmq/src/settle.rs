//! How deliveries are settled: the one file where brokers differ.
//!
//! Each by an answer of its own, never `multiple`: that would settle what others still hold. All answers of a call are
//! handed to lapin first and awaited then: one by one, each would wait for its own write.
//!
//! None is awaited longer than its session lives: an answer that is handed to lapin while it takes a connection down is
//! forgotten there, and its future never ends.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use inbox_core::{Message, Session};
use lapin::{
    Acker, Channel,
    options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions, QueueDeclareOptions},
    types::{FieldTable, ShortString},
};

/// How long is waited for a broker that is left.
const FAREWELL: Duration = Duration::from_secs(2);

/// What settles a delivery.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) acker: Acker,
    pub(crate) session: Session,
    /// Its number in the channel, by which deliveries are ordered.
    pub(crate) tag: u64,
    /// By which it is recognised when it comes back.
    pub(crate) print: u64,
}

/// Acknowledges; how many answers were sent. `Ok(false)` is none: the channel has ended, and nothing was sent.
pub(crate) async fn ack(held: Vec<Held>) -> usize {
    let answers = held.iter().map(|held| sent(held, held.acker.ack(BasicAckOptions { multiple: false })));
    join_all(answers).await.into_iter().filter(|sent| *sent).count()
}

/// Gives deliveries back to the queue, in the order in which they came: a queue puts each at its old place, and hands it
/// out again at once.
pub(crate) async fn give_back(mut held: Vec<Held>, returned: &Returned) {
    if held.is_empty() {
        return;
    }
    held.sort_unstable_by_key(|held| held.tag);
    returned.note(&held);
    // `nack`, not `reject`: quorum queues of RabbitMQ 4 count the latter towards the delivery limit.
    let options = BasicNackOptions { multiple: false, requeue: true };
    let answers = held.iter().map(|held| sent(held, held.acker.nack(options)));
    let lost = join_all(answers).await.into_iter().filter(|sent| !sent).count();
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

/// Whether an answer was written.
async fn sent(held: &Held, answer: impl Future<Output = lapin::Result<bool>>) -> bool {
    tokio::select! {
        biased;
        sent = answer => matches!(sent, Ok(true)),
        () = held.session.lost() => false,
    }
}

/// What was given back by us and may come again: the broker marks it as redelivered, as it marks what was in flight when
/// a consumer died.
#[derive(Debug, Default)]
pub(crate) struct Returned(Mutex<HashMap<u64, u32>>);

impl Returned {
    /// More than a channel can have out; others may have taken what never came back.
    const MOST: usize = 100_000;

    fn note(&self, held: &[Held]) {
        let mut prints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if prints.len() > Self::MOST {
            prints.clear();
        }
        for held in held {
            *prints.entry(held.print).or_default() += 1;
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
    use lapin::message::Delivery;

    use super::*;

    fn held(tag: u64, print: u64) -> Held {
        let acker = Delivery::mock(tag, "".into(), "q".into(), false, Vec::new()).acker;
        Held { acker, session: Session::new(), tag, print }
    }

    #[test]
    fn what_was_given_back_is_known_once() {
        let returned = Returned::default();
        returned.note(&[held(1, 7), held(2, 7), held(3, 8)]);
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
