//! Which partitions are ours, and how acks move their watermarks: the one file where brokers differ.
//!
//! An ack changes a number under a lock and returns; the polling thread stores what has moved
//! ([`Partitions::moved`]), and librdkafka commits what is stored, about once a second and when a partition is revoked.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use inbox_core::Session;
use rdkafka::{Offset, TopicPartitionList};

use crate::watermark::Watermark;

/// A partition of one of the subscribed topics, by the topic's place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) topic: u32,
    pub(crate) partition: i32,
}

impl Place {
    /// One number for it: the partition where one topic is read, never the same for two topics.
    pub(crate) fn number(self) -> u64 {
        (u64::from(self.topic) << 32) | u64::from(self.partition.unsigned_abs())
    }
}

/// The partitions that are assigned to this member, each with the session of its assignment.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    owned: HashMap<Place, Owned>,
    /// Whether a watermark may have moved since [`moved`](Self::moved).
    stirred: bool,
}

#[derive(Debug)]
struct Owned {
    session: Session,
    watermark: Watermark,
    stored: Option<i64>,
}

/// What became of a record that was polled.
#[derive(Debug)]
pub(crate) enum HandOver {
    /// It belongs to this session.
    Of(Session),
    /// The partition is not ours any more.
    NotOurs,
    /// The log went back: the old session is over, the record belongs to the new one.
    Renewed { old: Session, new: Session },
}

impl Partitions {
    /// A new assignment, a new session. Nothing of an older one of the same partition counts for it.
    pub(crate) fn start(&mut self, place: Place) {
        self.owned.insert(place, Owned { session: Session::new(), watermark: Watermark::default(), stored: None });
    }

    /// The session of a partition that is ours.
    pub(crate) fn session(&self, place: Place) -> Option<&Session> {
        self.owned.get(&place).map(|owned| &owned.session)
    }

    /// All partitions that are ours.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.owned.keys().copied().collect()
    }

    /// Notes a record that was polled.
    pub(crate) fn hand_over(&mut self, place: Place, offset: i64) -> HandOver {
        let Some(owned) = self.owned.get_mut(&place).filter(|owned| !owned.session.is_ending()) else {
            return HandOver::NotOurs;
        };
        let first = owned.watermark.low().is_none();
        if owned.watermark.hand_over(offset) {
            // Where the group started is worth a commit of its own: with `start=latest` a crash before the first ack
            // would lose what it was given.
            self.stirred |= first;
            return HandOver::Of(owned.session.clone());
        }
        let old = owned.session.clone();
        self.start(place);
        match self.hand_over(place, offset) {
            HandOver::Of(new) => HandOver::Renewed { old, new },
            // A fresh watermark takes any offset.
            other @ (HandOver::NotOurs | HandOver::Renewed { .. }) => other,
        }
    }

    /// The message is done for good. `false`: its assignment is over, nothing may be stored for it.
    pub(crate) fn finish(&mut self, place: Place, session: &Session, offset: i64) -> bool {
        let Some(owned) = self.owned.get_mut(&place).filter(|owned| owned.session.id() == session.id()) else {
            return false;
        };
        self.stirred = true;
        owned.watermark.finish(offset)
    }

    /// The consumer has passed everything below `position`.
    pub(crate) fn pass(&mut self, place: Place, position: i64) {
        if let Some(owned) = self.owned.get_mut(&place) {
            owned.watermark.pass(position);
            self.stirred = true;
        }
    }

    /// The watermarks that have moved and not been stored.
    pub(crate) fn moved(&mut self) -> Vec<(Place, i64)> {
        if !std::mem::take(&mut self.stirred) {
            return Vec::new();
        }
        self.owned
            .iter()
            .filter_map(|(place, owned)| {
                let low = owned.watermark.low()?;
                owned.stored.is_none_or(|stored| stored < low).then_some((*place, low))
            })
            .collect()
    }

    /// What [`moved`](Self::moved) said is stored.
    pub(crate) fn stored(&mut self, offsets: &[(Place, i64)]) {
        for (place, offset) in offsets {
            if let Some(owned) = self.owned.get_mut(place) {
                owned.stored = Some(*offset);
            }
        }
    }

    /// The assignment of `place` is over: its session, and its watermark.
    pub(crate) fn end(&mut self, place: Place) -> Option<(Session, Option<i64>)> {
        match self.owned.entry(place) {
            Entry::Occupied(entry) => {
                let owned = entry.remove();
                Some((owned.session, owned.watermark.low()))
            }
            Entry::Vacant(_) => None,
        }
    }

    /// How many messages are handed over and not finished.
    pub(crate) fn unfinished(&self) -> usize {
        self.owned.values().map(|owned| owned.watermark.unfinished()).sum()
    }
}

/// The list that `store_offsets` and `commit` take. It must be dropped before the consumer is: a list that has touched
/// a consumer keeps it from ending (rust-rdkafka #453).
pub(crate) fn list(topics: &[Arc<str>], offsets: &[(Place, i64)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (place, offset) in offsets {
        if let Some(topic) = topics.get(place.topic as usize) {
            // Fails for offsets below 0 only, and none is.
            drop(list.add_partition_offset(topic, place.partition, Offset::Offset(*offset)));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { topic: 0, partition: 3 };

    fn handed(partitions: &mut Partitions, offset: i64) -> Session {
        match partitions.hand_over(PLACE, offset) {
            HandOver::Of(session) => session,
            other @ (HandOver::NotOurs | HandOver::Renewed { .. }) => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_ack_of_an_older_assignment_moves_nothing() {
        let mut partitions = Partitions::default();
        partitions.start(PLACE);
        let old = handed(&mut partitions, 5);
        assert!(partitions.end(PLACE).is_some_and(|(session, low)| session.id() == old.id() && low == Some(5)));
        assert!(!partitions.finish(PLACE, &old, 5), "nobody owns it");
        partitions.start(PLACE);
        let new = handed(&mut partitions, 5);
        assert_ne!(new.id(), old.id());
        assert!(!partitions.finish(PLACE, &old, 5), "the late ack of a zombie");
        assert!(partitions.moved().iter().all(|(_, low)| *low <= 5));
        assert!(partitions.finish(PLACE, &new, 5));
        assert_eq!(partitions.moved(), [(PLACE, 6)]);
    }

    #[test]
    fn moved_says_each_step_once() {
        let mut partitions = Partitions::default();
        partitions.start(PLACE);
        let session = handed(&mut partitions, 1);
        handed(&mut partitions, 2);
        assert!(partitions.finish(PLACE, &session, 1));
        assert!(!partitions.finish(PLACE, &session, 1), "twice");
        let moved = partitions.moved();
        assert_eq!(moved, [(PLACE, 2)]);
        partitions.stored(&moved);
        assert!(partitions.moved().is_empty());
        assert!(partitions.finish(PLACE, &session, 2));
        partitions.pass(PLACE, 9);
        assert_eq!(partitions.moved(), [(PLACE, 9)]);
        assert_eq!(partitions.unfinished(), 0);
    }

    #[test]
    fn a_log_that_went_back_starts_a_session() {
        let mut partitions = Partitions::default();
        partitions.start(PLACE);
        let before = handed(&mut partitions, 100);
        match partitions.hand_over(PLACE, 0) {
            HandOver::Renewed { old, new } => {
                assert_eq!(old.id(), before.id());
                assert!(!partitions.finish(PLACE, &old, 100));
                assert!(partitions.finish(PLACE, &new, 0));
            }
            other @ (HandOver::Of(_) | HandOver::NotOurs) => panic!("{other:?}"),
        }
        assert_eq!(partitions.moved(), [(PLACE, 1)]);
    }

    #[test]
    fn what_is_polled_for_an_ending_session_is_not_taken() {
        let mut partitions = Partitions::default();
        assert!(matches!(partitions.hand_over(PLACE, 1), HandOver::NotOurs));
        partitions.start(PLACE);
        partitions.session(PLACE).expect("ours").mark_ending();
        assert!(matches!(partitions.hand_over(PLACE, 1), HandOver::NotOurs));
    }

    #[test]
    fn numbers_differ_by_topic() {
        assert_eq!(PLACE.number(), 3);
        assert_ne!(Place { topic: 1, partition: 3 }.number(), PLACE.number());
    }
}
