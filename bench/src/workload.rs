//! The messages: payments, and later copies of some of them. Pure: the same seed makes the same messages.

use fastrand::Rng;
use inbox::{Bytes, Message};
use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// The kind of every message.
pub(crate) const KIND: &str = "payment.captured";
/// How many accounts there are; the account is the ordering key.
const ACCOUNTS: usize = 1_000;
/// The farthest that a copy comes behind its original.
const FARTHEST: usize = 50_000;
/// When the first payment was captured, in milliseconds: fixed, so that ids are the same in every run.
const BEGIN: u64 = 1_760_000_000_000;

/// What a body holds.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Payment {
    /// The id of the payment, which is the message's too.
    pub(crate) payment: Uuid,
    /// Whose it is.
    pub(crate) account: String,
    /// In cents.
    pub(crate) amount: i64,
    /// The place among all payments: within an account, receipts must be in this order.
    pub(crate) sequence: i64,
    /// What a real event carries besides.
    currency: String,
    reference: String,
    note: String,
}

/// What a topic is filled with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// How many distinct payments there are.
    pub(crate) payments: usize,
    /// How many of them come a second time.
    pub(crate) copies: usize,
    /// Where chance begins.
    pub(crate) seed: u64,
}

impl Workload {
    /// How many records that makes.
    pub(crate) fn records(&self) -> usize {
        self.payments + self.copies
    }

    /// The sum of the amounts of the distinct payments.
    pub(crate) fn sum(&self) -> i64 {
        self.payments().map(|payment| payment.amount).sum()
    }

    /// The distinct payments, in their order.
    fn payments(&self) -> impl Iterator<Item = Payment> {
        let mut rng = Rng::with_seed(self.seed);
        (0..self.payments as u64).map(move |at| {
            let mut random = [0_u8; 10];
            rng.fill(&mut random);
            Payment {
                payment: Builder::from_unix_timestamp_millis(BEGIN + at / 10, &random).into_uuid(),
                account: format!("account-{:04}", rng.usize(..ACCOUNTS)),
                amount: rng.i64(100..100_000),
                sequence: at.cast_signed(),
                currency: "EUR".to_owned(),
                reference: format!("{:016x}", rng.u64(..)),
                note: "captured by the card terminal at the front desk".to_owned(),
            }
        })
    }

    /// The payment at each place of the topic: its number, and whether it is a copy.
    fn order(&self) -> Vec<(usize, bool)> {
        let mut rng = Rng::with_seed(self.seed ^ 0x00C0_FFEE);
        let mut twice: Vec<usize> = (0..self.payments).collect();
        rng.shuffle(&mut twice);
        let mut places: Vec<(usize, bool, usize)> = (0..self.payments).map(|number| (number, false, number)).collect();
        for &number in twice.iter().take(self.copies) {
            let behind = rng.usize(1..=FARTHEST.min(self.payments - number));
            places.push((number + behind - 1, true, number));
        }
        places.sort_unstable();
        places.into_iter().map(|(_, copy, number)| (number, copy)).collect()
    }

    /// The messages of the topic, in their order.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message> {
        let payments: Vec<Payment> = self.payments().collect();
        self.order().into_iter().map(move |(number, _)| message(&payments[number]))
    }
}

fn message(payment: &Payment) -> Message {
    // Writing a struct of texts and numbers to memory does not fail.
    let body = serde_json::to_vec(payment).unwrap_or_default();
    Message::new(Bytes::from(body)).id(payment.payment.to_string()).kind(KIND).key(payment.account.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bodies_have_the_size_that_the_report_says() {
        let workload = Workload { payments: 1_000, copies: 0, seed: 1 };
        let sizes: Vec<usize> = workload.messages().map(|message| message.body.len()).collect();
        assert!(sizes.iter().all(|size| (200..=220).contains(size)), "{:?}", sizes.iter().max());
    }

    #[test]
    fn ids_are_of_version_7_and_rise() {
        let ids: Vec<Uuid> =
            Workload { payments: 1_000, copies: 0, seed: 1 }.payments().map(|payment| payment.payment).collect();
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        assert!(ids.windows(20).all(|ids| ids[0] < ids[19]));
    }

    proptest! {
        #[test]
        fn each_payment_comes_once_and_its_copy_behind_it(payments in 1_usize..400, tenth in 0_usize..11, seed in any::<u64>()) {
            let workload = Workload { payments, copies: payments * tenth / 10, seed };
            let order = workload.order();
            prop_assert_eq!(order.len(), workload.records());
            let mut seen: HashMap<usize, usize> = HashMap::new();
            for (place, (number, copy)) in order.iter().enumerate() {
                let before = seen.insert(*number, place);
                prop_assert_eq!(before.is_some(), *copy);
            }
            prop_assert_eq!(seen.len(), payments);
            prop_assert_eq!(&order, &workload.order());
        }
    }
}
