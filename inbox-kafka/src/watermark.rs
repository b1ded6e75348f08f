//! Up to where a partition is done. Pure.
//!
//! A partition's offsets have holes (compaction, transaction markers), so what counts are the offsets that were handed
//! over, never "the last one plus one". The state is one number and the set of offsets that were handed over and are
//! not finished: it is bounded by what is in flight, however far work behind a slow message has gone on. Finished
//! offsets need no memory of their own, since a hole between two unfinished offsets is either finished or no message.

use std::collections::BTreeSet;

/// The low watermark of one assignment of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// Everything below was handed over, or is no message; `None` until the first offset is known.
    next: Option<i64>,
    /// What was handed over and is not finished.
    unfinished: BTreeSet<i64>,
}

impl Watermark {
    /// The message at `offset` is handed over for the first time. `false`: it lies below what was handed over already,
    /// so the log is not the one that it was (truncated, or the topic was made anew) and nothing was noted.
    #[must_use]
    pub(crate) fn hand_over(&mut self, offset: i64) -> bool {
        if self.next.is_some_and(|next| offset < next) {
            return false;
        }
        self.unfinished.insert(offset);
        self.next = Some(offset + 1);
        true
    }

    /// The message at `offset` is finished. `false`: it was not unfinished.
    pub(crate) fn finish(&mut self, offset: i64) -> bool {
        self.unfinished.remove(&offset)
    }

    /// There is no message below `position` that was not handed over: the consumer has passed a hole.
    pub(crate) fn pass(&mut self, position: i64) {
        if self.next.is_none_or(|next| next < position) {
            self.next = Some(position);
        }
    }

    /// The offset at which a successor starts: nothing at or above it is done for sure, everything below it is.
    #[must_use]
    pub(crate) fn low(&self) -> Option<i64> {
        self.unfinished.first().copied().or(self.next)
    }

    /// How many offsets are handed over and not finished.
    #[must_use]
    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn out_of_order_finishes_with_holes() {
        let mut mark = Watermark::default();
        assert_eq!(mark.low(), None);
        for offset in [3, 4, 9, 12] {
            assert!(mark.hand_over(offset));
        }
        assert_eq!(mark.low(), Some(3));
        assert!(mark.finish(9) && mark.finish(4));
        assert_eq!(mark.low(), Some(3));
        assert!(mark.finish(3));
        assert_eq!(mark.low(), Some(12), "the hole between 9 and 12 is no message");
        assert!(mark.finish(12) && !mark.finish(12));
        assert_eq!(mark.low(), Some(13));
        mark.pass(17);
        assert_eq!(mark.low(), Some(17), "behind a transaction marker");
        mark.pass(14);
        assert_eq!(mark.low(), Some(17));
        assert!(!mark.hand_over(16), "the log went back");
        assert_eq!(mark.low(), Some(17));
    }

    #[test]
    fn a_hole_is_passed_only_when_nothing_is_unfinished_below_it() {
        let mut mark = Watermark::default();
        mark.pass(5);
        assert_eq!(mark.low(), Some(5), "nothing was ever handed over: an aborted transaction at the start");
        assert!(mark.hand_over(7));
        mark.pass(9);
        assert_eq!(mark.low(), Some(7));
        mark.finish(7);
        assert_eq!((mark.low(), mark.unfinished()), (Some(9), 0));
    }

    /// What a run may do. Offsets of `Finish` are picked among those handed over.
    #[derive(Clone, Debug)]
    enum Step {
        HandOver { gap: i64 },
        Finish { pick: usize },
        FinishAgain { pick: usize },
        Pass { gap: i64 },
        GoBack { by: i64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_i64..4).prop_map(|gap| Step::HandOver { gap }),
            4 => any::<usize>().prop_map(|pick| Step::Finish { pick }),
            1 => any::<usize>().prop_map(|pick| Step::FinishAgain { pick }),
            1 => (0_i64..4).prop_map(|gap| Step::Pass { gap }),
            1 => (1_i64..9).prop_map(|by| Step::GoBack { by }),
        ]
    }

    proptest! {
        /// The naive model keeps every offset for ever with a bit whether it is finished.
        #[test]
        fn agrees_with_a_model_that_remembers_everything(steps in prop::collection::vec(step(), 0..120), start in 0_i64..50) {
            let mut mark = Watermark::default();
            let mut model: BTreeMap<i64, bool> = BTreeMap::new();
            let mut position: Option<i64> = None;
            let mut stored = 0;
            for step in steps {
                match step {
                    Step::HandOver { gap } => {
                        let offset = position.unwrap_or(start) + gap;
                        prop_assert!(mark.hand_over(offset));
                        model.insert(offset, false);
                        position = Some(offset + 1);
                    }
                    Step::Finish { pick } => {
                        let open: Vec<i64> = model.iter().filter(|(_, done)| !**done).map(|(o, _)| *o).collect();
                        if !open.is_empty() {
                            let offset = open[pick % open.len()];
                            prop_assert!(mark.finish(offset));
                            model.insert(offset, true);
                        }
                    }
                    Step::FinishAgain { pick } => {
                        let done: Vec<i64> = model.iter().filter(|(_, done)| **done).map(|(o, _)| *o).collect();
                        if !done.is_empty() {
                            prop_assert!(!mark.finish(done[pick % done.len()]));
                        }
                    }
                    Step::Pass { gap } => {
                        let to = position.unwrap_or(start) + gap;
                        mark.pass(to);
                        position = Some(to);
                    }
                    Step::GoBack { by } => {
                        if let Some(position) = position {
                            prop_assert!(!mark.hand_over(position - by));
                        }
                    }
                }
                let expected = model.iter().find(|(_, done)| !**done).map(|(offset, _)| *offset).or(position);
                prop_assert_eq!(mark.low(), expected);
                prop_assert_eq!(mark.unfinished(), model.values().filter(|done| !**done).count());
                if let Some(low) = mark.low() {
                    prop_assert!(low >= stored, "the watermark went back from {} to {}", stored, low);
                    prop_assert!(model.iter().all(|(offset, done)| *done || *offset >= low), "an unfinished offset is below");
                    stored = low;
                }
            }
        }

        /// Whatever the order of finishing: once all is finished, the position is reached and nothing is remembered.
        #[test]
        fn all_finished_is_the_position(gaps in prop::collection::vec(0_i64..5, 1..80), order in any::<u64>()) {
            let mut mark = Watermark::default();
            let mut offset = 0;
            let mut offsets = Vec::new();
            for gap in gaps {
                offset += gap;
                prop_assert!(mark.hand_over(offset));
                offsets.push(offset);
                offset += 1;
            }
            let mut state = order;
            while !offsets.is_empty() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let index = usize::try_from(state >> 33).unwrap_or(0) % offsets.len();
                prop_assert!(mark.finish(offsets.swap_remove(index)));
            }
            prop_assert_eq!((mark.low(), mark.unfinished()), (Some(offset), 0));
        }
    }
}
