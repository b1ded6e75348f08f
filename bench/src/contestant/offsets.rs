//! Which offset may be stored: the lowest one of a partition that is not done yet. Pure.

use std::collections::{HashMap, VecDeque};

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

/// The records of each partition that were polled and not all done. Their offsets follow one another: this topic was
/// written without transactions and is not compacted.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    partitions: HashMap<i32, Partition>,
}

#[derive(Debug)]
struct Partition {
    low: i64,
    done: VecDeque<bool>,
}

impl Offsets {
    /// Notes a record, in the order of polling.
    pub(crate) fn polled(&mut self, place: Place) {
        let first = || Partition { low: place.offset, done: VecDeque::new() };
        self.partitions.entry(place.partition).or_insert_with(first).done.push_back(false);
    }

    /// Notes records that are done; the last record of each partition below which all are, where that moved.
    pub(crate) fn done(&mut self, places: &[Place]) -> Vec<Place> {
        let mut touched = Vec::new();
        for place in places {
            let Some(partition) = self.partitions.get_mut(&place.partition) else { continue };
            let done = usize::try_from(place.offset - partition.low).ok().and_then(|at| partition.done.get_mut(at));
            if let Some(done) = done {
                *done = true;
            }
            if !touched.contains(&place.partition) {
                touched.push(place.partition);
            }
        }
        touched.into_iter().filter_map(|number| self.passed(number)).collect()
    }

    fn passed(&mut self, number: i32) -> Option<Place> {
        let partition = self.partitions.get_mut(&number)?;
        let before = partition.low;
        while partition.done.front() == Some(&true) {
            partition.done.pop_front();
            partition.low += 1;
        }
        (partition.low > before).then_some(Place { partition: number, offset: partition.low - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_passed_that_is_not_done() {
        let place = |partition, offset| Place { partition, offset };
        let mut offsets = Offsets::default();
        for offset in 7..11 {
            offsets.polled(place(0, offset));
        }
        offsets.polled(place(1, 0));
        assert_eq!(offsets.done(&[place(0, 8), place(1, 0)]), [place(1, 0)]);
        assert_eq!(offsets.done(&[place(0, 7)]), [place(0, 8)]);
        assert_eq!(offsets.done(&[place(0, 10)]), []);
        assert_eq!(offsets.done(&[place(0, 9)]), [place(0, 10)]);
    }
}
