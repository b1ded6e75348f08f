//! Which messages of a lane's queue form the next transaction. Pure.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use crate::id::MessageId;

/// What selection looks at in a queued message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) id: MessageId,
    pub(crate) fingerprint: i32,
    /// The ordering key's hash; equal hashes of different keys only cost parallelism.
    pub(crate) key: Option<u64>,
    pub(crate) alone: bool,
    pub(crate) not_before: Option<Instant>,
}

/// The next transaction of a lane.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Places in the queue, ascending; each id once.
    pub(crate) batch: Vec<usize>,
    /// Places of further copies with the same content, each with the place in `batch` of the first: they share its fate.
    pub(crate) copies: Vec<(usize, usize)>,
    /// When the first message that waits is due.
    pub(crate) next_due: Option<Instant>,
}

/// Takes messages from the front, at most `cap`.
///
/// - A message that waits holds back all later ones of its key, and all later copies of its id.
/// - A copy with another content waits until the first one is gone: it then goes through claim itself.
/// - A message that runs alone ends the batch before it.
pub(crate) fn select(queue: impl IntoIterator<Item = Slot>, now: Instant, cap: usize) -> Selection {
    let mut selection = Selection::default();
    let mut held_keys: HashSet<u64> = HashSet::new();
    let mut held_ids: HashSet<MessageId> = HashSet::new();
    let mut taken: HashMap<MessageId, (usize, i32)> = HashMap::new();
    for (place, slot) in queue.into_iter().enumerate() {
        let waits = slot.not_before.is_some_and(|due| due > now);
        if waits {
            selection.next_due = selection.next_due.min(slot.not_before).or(slot.not_before);
        }
        let behind = slot.key.is_some_and(|key| held_keys.contains(&key)) || held_ids.contains(&slot.id);
        if behind || waits {
            held_keys.extend(slot.key);
            held_ids.insert(slot.id);
            continue;
        }
        if let Some((first, fingerprint)) = taken.get(&slot.id) {
            if *fingerprint == slot.fingerprint {
                selection.copies.push((place, *first));
            } else {
                held_keys.extend(slot.key);
                held_ids.insert(slot.id);
            }
            continue;
        }
        if slot.alone && !selection.batch.is_empty() {
            break;
        }
        taken.insert(slot.id, (selection.batch.len(), slot.fingerprint));
        selection.batch.push(place);
        if slot.alone || selection.batch.len() >= cap {
            break;
        }
    }
    selection
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn slot(id: u128, key: u64) -> Slot {
        let id = MessageId::from_uuid(Uuid::from_u128(id));
        Slot { id, fingerprint: 0, key: Some(key), alone: false, not_before: None }
    }

    #[test]
    fn a_message_that_runs_alone_ends_the_batch_before_it() {
        let now = Instant::now();
        let suspect = Slot { alone: true, ..slot(3, 3) };
        let queue = [slot(1, 1), slot(2, 2), suspect, slot(4, 4)];
        assert_eq!(select(queue, now, 10).batch, [0, 1]);
        assert_eq!(select(queue[2..].iter().copied(), now, 10).batch, [0]);
    }

    #[test]
    fn what_waits_holds_back_its_key_and_nothing_else() {
        let now = Instant::now();
        let due = now + Duration::from_secs(1);
        let queue = [Slot { not_before: Some(due), ..slot(1, 1) }, slot(2, 1), slot(3, 2)];
        let selection = select(queue, now, 10);
        assert_eq!((selection.batch, selection.next_due), (vec![2], Some(due)));
        assert_eq!(select(queue, due, 10).batch, [0, 1, 2]);
    }

    #[test]
    fn copies_share_the_fate_of_the_first_unless_their_content_differs() {
        let now = Instant::now();
        let queue = [slot(1, 1), slot(1, 1), Slot { fingerprint: 9, ..slot(1, 1) }, slot(2, 1), slot(3, 2)];
        let selection = select(queue, now, 10);
        assert_eq!((selection.batch, selection.copies), (vec![0, 4], vec![(1, 0)]));
    }

    fn slots(now: Instant) -> impl Strategy<Value = Vec<Slot>> {
        prop::collection::vec((0_u128..8, 0_i32..2, prop::option::of(0_u64..4), any::<bool>(), any::<bool>()), 0..24)
            .prop_map(move |slots| {
                slots
                    .into_iter()
                    .map(|(id, fingerprint, key, alone, waits)| Slot {
                        fingerprint,
                        key,
                        alone,
                        not_before: waits.then(|| now + Duration::from_secs(1)),
                        ..slot(id + 1, 0)
                    })
                    .collect()
            })
    }

    proptest! {
        #[test]
        fn no_message_overtakes_its_key_and_no_id_stands_twice(
            (queue, cap) in (slots(Instant::now()), 1_usize..10)
        ) {
            let now = Instant::now();
            let selection = select(queue.iter().copied(), now, cap);
            prop_assert!(selection.batch.len() <= cap);
            let chosen: HashSet<usize> =
                selection.batch.iter().copied().chain(selection.copies.iter().map(|(place, _)| *place)).collect();
            let mut ids = HashSet::new();
            for place in &selection.batch {
                prop_assert!(ids.insert(queue[*place].id));
                prop_assert!(queue[*place].not_before.is_none_or(|due| due <= now));
            }
            for place in &chosen {
                for (earlier, slot) in queue.iter().enumerate().take(*place) {
                    let related = slot.id == queue[*place].id || (slot.key.is_some() && slot.key == queue[*place].key);
                    prop_assert!(!related || chosen.contains(&earlier), "{place} overtakes {earlier}");
                }
            }
            for (place, first) in &selection.copies {
                let first = queue[selection.batch[*first]];
                prop_assert_eq!((first.id, first.fingerprint), (queue[*place].id, queue[*place].fingerprint));
            }
            if queue.iter().any(|slot| slot.not_before.is_none()) && queue[0].not_before.is_none() {
                prop_assert!(!selection.batch.is_empty(), "the front can always run");
            }
            if selection.batch.iter().any(|place| queue[*place].alone) {
                prop_assert_eq!(selection.batch.len(), 1);
            }
        }
    }
}
