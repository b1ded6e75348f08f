//! Which answers a channel's deliveries may share. Pure.
//!
//! An answer `multiple` acknowledges everything up to its tag. It is given only where nothing below is still held or on its
//! way back: what it covered besides would be lost. And its tag must be one that was not answered yet, or the broker ends
//! the channel.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// The deliveries of one channel that are not answered.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    /// Those that are held, or about to be given back.
    open: BTreeSet<u64>,
    /// Those that are acked and of which the broker has not been told, and since when.
    acked: BTreeMap<u64, Instant>,
}

impl Tags {
    /// The broker has handed one out. Tags come in their order, so none below this one comes any more.
    pub(crate) fn came(&mut self, tag: u64) {
        self.open.insert(tag);
    }

    /// These are done.
    pub(crate) fn ack(&mut self, tags: impl IntoIterator<Item = u64>, now: Instant) {
        for tag in tags {
            if self.open.remove(&tag) {
                self.acked.insert(tag, now);
            }
        }
    }

    /// The broker was told that this one is given back.
    pub(crate) fn given_back(&mut self, tag: u64) {
        self.open.remove(&tag);
    }

    /// Takes what one answer acknowledges; its tag.
    pub(crate) fn passed(&mut self) -> Option<u64> {
        let behind = match self.open.first() {
            Some(lowest) => self.acked.split_off(lowest),
            None => BTreeMap::new(),
        };
        let passed = std::mem::replace(&mut self.acked, behind);
        passed.last_key_value().map(|(tag, _)| *tag)
    }

    /// Takes what was acked before `since` and is still behind something that is held: each needs an answer of its own.
    pub(crate) fn late(&mut self, since: Instant) -> Vec<u64> {
        self.acked.extract_if(.., |_, acked| *acked <= since).map(|(tag, _)| tag).collect()
    }

    /// Whether what waits takes half of the `room` for what is unanswered, without which the broker sends nothing more.
    pub(crate) fn crowd(&self, room: u16) -> bool {
        self.acked.len() * 2 > usize::from(room)
    }

    /// Whether the broker has not been told of something that is acked.
    pub(crate) fn waits(&self) -> bool {
        !self.acked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// What a broker does with answers, and what was wanted.
    #[derive(Default)]
    struct Broker {
        unanswered: BTreeSet<u64>,
        done: BTreeSet<u64>,
    }

    impl Broker {
        fn one(&mut self, tag: u64) {
            assert!(self.unanswered.remove(&tag), "{tag} was answered before: the channel ends");
            assert!(self.done.contains(&tag), "{tag} was not done, and is lost");
        }

        fn multiple(&mut self, tag: u64) {
            assert!(self.unanswered.contains(&tag), "{tag} was answered before: the channel ends");
            let covered: Vec<u64> = self.unanswered.range(..=tag).copied().collect();
            covered.into_iter().for_each(|tag| self.one(tag));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Come(u8),
        /// Of what is held, those whose place has a bit.
        Ack(u16),
        GiveBack(u16),
        Late,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..8_u8).prop_map(Step::Come),
            any::<u16>().prop_map(Step::Ack),
            any::<u16>().prop_map(Step::GiveBack),
            Just(Step::Late),
        ]
    }

    fn chosen(held: &mut Vec<u64>, bits: u16) -> Vec<u64> {
        let is_chosen = |at: usize| bits >> (at % 16) & 1 == 1;
        let (chosen, kept): (Vec<_>, Vec<_>) = held.drain(..).enumerate().partition(|(at, _)| is_chosen(*at));
        held.extend(kept.into_iter().map(|(_, tag)| tag));
        chosen.into_iter().map(|(_, tag)| tag).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_covered_that_is_not_done_and_nothing_is_answered_twice(
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let (mut tags, mut broker, mut held, mut last) = (Tags::default(), Broker::default(), Vec::new(), 0);
            let now = Instant::now();
            for step in steps {
                match step {
                    Step::Come(count) => for _ in 0..count {
                        last += 1;
                        broker.unanswered.insert(last);
                        held.push(last);
                        tags.came(last);
                    },
                    Step::Ack(bits) => {
                        let acked = chosen(&mut held, bits);
                        broker.done.extend(&acked);
                        tags.ack(acked, now);
                    }
                    Step::GiveBack(bits) => for tag in chosen(&mut held, bits) {
                        assert!(broker.unanswered.remove(&tag), "{tag} was answered before: the channel ends");
                        tags.given_back(tag);
                    },
                    Step::Late => tags.late(now).into_iter().for_each(|tag| broker.one(tag)),
                }
                if let Some(tag) = tags.passed() {
                    broker.multiple(tag);
                }
            }
            tags.late(now).into_iter().for_each(|tag| broker.one(tag));
            prop_assert!(!tags.waits());
            prop_assert_eq!(broker.unanswered.into_iter().collect::<Vec<_>>(), held);
        }
    }

    #[test]
    fn one_that_is_held_holds_back_only_what_was_acked_lately() {
        let mut tags = Tags::default();
        (1..=4).for_each(|tag| tags.came(tag));
        let (early, now) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        tags.ack([1], early);
        assert_eq!(tags.passed(), Some(1));
        tags.ack([3], early);
        tags.ack([4], now);
        assert!(tags.crowd(3) && !tags.crowd(4));
        assert_eq!(tags.passed(), None);
        assert_eq!(tags.late(early), [3]);
        assert!(tags.waits());
        tags.ack([2], now);
        assert_eq!(tags.passed(), Some(4));
        assert!(!tags.waits());
    }
}
