//! What is published: payments in an order of their own within each account, some of them twice.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::bail;
use inbox::{Message, Publisher};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::child::KIND;

/// A broker that is started again on a busy machine is back before.
const PATIENCE: Duration = Duration::from_secs(90);

/// The body of a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payment {
    /// Its number.
    pub(crate) payment: i64,
    /// The ordering key.
    pub(crate) account: String,
    /// Its place among the payments of its account.
    pub(crate) place: i64,
}

/// The messages of a round, and where its copies stand.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    payments: Vec<(Uuid, Payment)>,
    /// Which payment is published, in order; copies are among them.
    order: Vec<usize>,
}

impl Load {
    /// `messages` payments of a tenth or so as many accounts, and a copy of every tenth up to half of all later.
    pub(crate) fn new(messages: u32, rng: &mut fastrand::Rng) -> Self {
        let accounts = (messages / 20).clamp(8, 1_000);
        let mut places = vec![0_i64; accounts as usize];
        let payments = (0..i64::from(messages))
            .map(|payment| {
                let account = rng.usize(..places.len());
                let place = places[account];
                places[account] += 1;
                (Uuid::now_v7(), Payment { payment, account: format!("account-{account}"), place })
            })
            .collect();
        let mut order: Vec<(usize, usize)> = (0..messages as usize).map(|at| (at, at)).collect();
        let half = (messages as usize / 2).max(1);
        order.extend((0..messages as usize).step_by(10).map(|at| (at + rng.usize(1..=half), at)));
        order.sort_by_key(|(when, _)| *when);
        Self { payments, order: order.into_iter().map(|(_, at)| at).collect() }
    }

    /// The same payments, each published twice in a row.
    pub(crate) fn in_twins(mut self) -> Self {
        self.order = (0..self.payments.len()).flat_map(|payment| [payment; 2]).collect();
        self
    }

    /// Lets these payments be published once more, behind everything else.
    pub(crate) fn again(&mut self, payments: &[usize]) {
        self.order.extend(payments);
    }

    /// Which payment each message is of, in the order of publishing.
    pub(crate) fn order(&self) -> &[usize] {
        &self.order
    }

    /// How many payments there are.
    pub(crate) fn payments(&self) -> usize {
        self.payments.len()
    }

    /// How many messages are published, copies included.
    pub(crate) fn published(&self) -> usize {
        self.order.len()
    }

    /// The id of each payment, by its number.
    pub(crate) fn ids(&self) -> Vec<Uuid> {
        self.payments.iter().map(|(id, _)| *id).collect()
    }

    /// A message as it is published.
    pub(crate) fn message(&self, at: usize) -> anyhow::Result<Message> {
        let (id, payment) = &self.payments[self.order[at]];
        Ok(Message::new(serde_json::to_vec(payment)?.into()).id(id.to_string()).kind(KIND).key(payment.account.clone()))
    }

    /// Publishes a part of it, in order, each until it is confirmed: so many at once, with a pause behind them. When the
    /// attempt began that was confirmed, for each.
    pub(crate) async fn publish(
        &self,
        publisher: &Arc<dyn Publisher>,
        part: Range<usize>,
        (at_once, rest): (usize, Duration),
    ) -> anyhow::Result<Vec<Instant>> {
        let mut sent = vec![Instant::now(); part.len()];
        for start in part.clone().step_by(at_once) {
            let mut left: Vec<usize> = (start..(start + at_once).min(part.end)).collect();
            let since = Instant::now();
            loop {
                let messages = left.iter().map(|at| self.message(*at)).collect::<anyhow::Result<Vec<_>>>()?;
                let began = Instant::now();
                let confirmed = publisher.publish(messages).await;
                left.iter().for_each(|at| sent[at - part.start] = began);
                left = left.into_iter().zip(&confirmed).filter(|(_, done)| done.is_err()).map(|(at, _)| at).collect();
                if left.is_empty() {
                    break;
                }
                if since.elapsed() > PATIENCE {
                    bail!("{} messages cannot be published within {PATIENCE:?}", left.len());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            tokio::time::sleep(rest).await;
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payment_is_published_and_each_tenth_twice() {
        let load = Load::new(1_000, &mut fastrand::Rng::with_seed(1));
        let mut times = vec![0; load.payments()];
        let mut first = vec![usize::MAX; load.payments()];
        for (at, payment) in load.order.iter().enumerate() {
            times[*payment] += 1;
            first[*payment] = first[*payment].min(at);
        }
        assert_eq!(load.published(), 1_100);
        assert!(times.iter().enumerate().all(|(payment, times)| *times == 1 + usize::from(payment % 10 == 0)));
        assert!(first.is_sorted(), "first copies keep the order of the payments");
        let message = load.message(7).expect("a message");
        let payment: Payment = serde_json::from_slice(&message.body).expect("a payment");
        assert_eq!(message.key.as_deref(), Some(payment.account.as_bytes()));
    }
}
