//! The parts that crash: each lives until it crashes or is told to stop.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use inbox::{Message, Publisher};

use crate::{
    args::Role,
    broker::Broker,
    crash::{Crash, CrashingPublisher, CrashingTransport},
    shop::{Consumer, PaymentEvent, Shop, Stop},
};

/// What every part of a run knows.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) broker: Broker,
    pub(crate) shop: Arc<dyn Shop>,
    pub(crate) no_inbox: bool,
}

impl Run {
    /// The name under which a consumer of this run claims.
    pub(crate) fn consumer(&self, role: Role) -> String {
        format!("chaos-{}-{}", self.name, role.name())
    }
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Crashed,
    Stopped,
}

/// Lives once.
pub(crate) async fn live(run: &Run, role: Role, crash: Arc<Crash>, stop: Stop) -> anyhow::Result<End> {
    match role {
        Role::RelayEven => relay(run, 0, crash, stop).await,
        Role::RelayOdd => relay(run, 1, crash, stop).await,
        Role::Notifier | Role::Projection => consume(run, role, crash, stop).await,
    }
}

/// Publishes one half of the outbox, batch by batch, and marks what the broker has confirmed.
async fn relay(run: &Run, half: i64, crash: Arc<Crash>, mut stop: Stop) -> anyhow::Result<End> {
    let publisher = run.broker.publisher().await.context("connect the relay")?;
    let publisher = CrashingPublisher { inner: publisher, crash: Arc::clone(&crash) };
    loop {
        let rows = run.shop.unpublished(half, 20).await.context("read the outbox")?;
        if rows.is_empty() {
            tokio::select! {
                _ = &mut stop => {
                    publisher.close(Duration::from_secs(5)).await?;
                    return Ok(End::Stopped);
                }
                () = tokio::time::sleep(Duration::from_millis(10)) => continue,
            }
        }
        let mut messages = Vec::with_capacity(rows.len());
        for row in &rows {
            let body = serde_json::to_vec(&PaymentEvent { payment: row.payment })?;
            messages
                .push(Message::new(body.into()).id(row.id.clone()).kind(row.kind.clone()).key(row.payment.to_string()));
        }
        let confirmed = publisher.publish(messages).await;
        if crash.is_dead() {
            return Ok(End::Crashed);
        }
        let published: Vec<i64> =
            rows.iter().zip(&confirmed).filter(|(_, done)| done.is_ok()).map(|(row, _)| row.number).collect();
        run.shop.mark(&published).await.context("mark the outbox")?;
    }
}

async fn consume(run: &Run, role: Role, crash: Arc<Crash>, stop: Stop) -> anyhow::Result<End> {
    let transport = inbox::connect(&run.broker.url(Some(role.name()))).await.context("connect the consumer")?;
    let transport = Box::new(CrashingTransport { inner: transport, crash: Arc::clone(&crash) });
    let consumer = Consumer { name: run.consumer(role), notifies: role == Role::Notifier, transport };
    let consuming = async {
        if run.no_inbox { run.shop.consume_bare(consumer, stop).await } else { run.shop.consume(consumer, stop).await }
    };
    // A crash drops the consumer where it stands.
    tokio::select! {
        biased;
        () = crash.died() => Ok(End::Crashed),
        ended = consuming => ended.map(|()| if crash.is_dead() { End::Crashed } else { End::Stopped }),
    }
}
