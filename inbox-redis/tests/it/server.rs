//! A server that is restarted, killed, filled up and administered while a service runs.

use std::{collections::BTreeSet, path::PathBuf};

use inbox_core::{Publisher, Transport, TransportErrorKind, report};
use xtask::{
    process::signal,
    servers::{free_port, redis::Node},
};

use crate::support::{PATIENCE, Stream, ack, drain, number, numbered, receive, some, try_ack, until};

/// A server of this test alone, with its process while it runs.
struct Own {
    node: Node,
    pid: Option<u32>,
    folder: tempfile::TempDir,
}

impl Own {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base: PathBuf = folder.path().join("redis");
        let mut own = Self { node: Node::make(&base, free_port().unwrap()).unwrap(), pid: None, folder };
        own.again().await;
        own
    }

    async fn again(&mut self) {
        let node = self.node.clone();
        self.pid = Some(tokio::task::spawn_blocking(move || node.start()).await.unwrap().unwrap());
    }

    async fn stop(&mut self, kill: bool) {
        let (node, pid) = (self.node.clone(), self.pid.take().unwrap());
        tokio::task::spawn_blocking(move || node.stop(pid, kill)).await.unwrap().unwrap();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            drop(self.node.stop(pid, true));
        }
        assert!(self.folder.path().exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_restarted_and_killed_has_lost_nothing() {
    let mut own = Own::start().await;
    let stream = Stream::at(own.node.url(), "lease=3s&request_timeout=2s").await;
    let transport = stream.consumer().await;
    let publisher = inbox_redis::publisher(&stream.url()).await.unwrap();
    let mut left = BTreeSet::new();
    for (round, kill) in [(0, false), (1, true)] {
        let numbers = round * 200..round * 200 + 200;
        for (n, result) in numbers.clone().zip(publisher.publish(numbers.map(numbered).collect()).await) {
            result.unwrap_or_else(|error| panic!("{n}: {}", report(&error)));
            left.insert(n);
        }
        let mut held = receive(&transport, 60).await;
        let done = held.split_off(30);
        done.iter().for_each(|delivery| assert!(left.remove(&number(delivery))));
        ack(&transport, done).await;
        own.stop(kill).await;
        until("it is noticed", async || {
            // Only a read that is asked for finds it out.
            drop(
                tokio::time::timeout(
                    std::time::Duration::from_millis(50),
                    transport.receive(crate::support::at_most(1)),
                )
                .await,
            );
            !transport.connected()
        })
        .await;
        let refused = publisher.publish(vec![numbered(9_999)]).await.remove(0).expect_err("nobody is there");
        assert_eq!(refused.kind(), TransportErrorKind::Unavailable, "{}", report(&refused));
        own.again().await;
        // What was held when it went is lost or not, as the lease has it; what counts comes once more or never.
        for delivery in held {
            let n = number(&delivery);
            if try_ack(&transport, vec![delivery]).await == (1, 0) {
                left.remove(&n);
            }
        }
    }
    while !left.is_empty() {
        let deliveries = some(&transport, 100).await;
        let numbers: Vec<u32> = deliveries.iter().map(number).collect();
        if try_ack(&transport, deliveries).await.1 == 0 {
            left.retain(|n| !numbers.contains(n));
        }
    }
    assert_eq!(stream.backlog().await, 0, "each was published once");
    assert_eq!(inbox_redis::count_entries(&stream.url()).await.unwrap(), 400);
    transport.close(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_loses_nothing() {
    let own = Own::start().await;
    let stream = Stream::at(own.node.url(), "").await;
    stream.publish(0..10).await;
    let transport = stream.consumer().await;
    let publisher = inbox_redis::publisher(&stream.url()).await.unwrap();
    let held = receive(&transport, 10).await;
    stream.run::<()>("CLIENT KILL TYPE normal SKIPME yes").await;
    ack(&transport, held).await;
    until("it publishes again", async || publisher.publish(vec![numbered(10)]).await.remove(0).is_ok()).await;
    drain(&transport, 10..11).await;
    transport.close(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_silent_for_longer_than_a_lease() {
    let own = Own::start().await;
    let stream = Stream::at(own.node.url(), "lease=2s&request_timeout=1s").await;
    stream.publish(0..5).await;
    let transport = stream.consumer().await;
    let held = receive(&transport, 5).await;
    signal(own.pid.unwrap(), "STOP").unwrap();
    until("nothing of it is started any more", async || held.iter().all(|held| held.receipt.is_ending())).await;
    signal(own.pid.unwrap(), "CONT").unwrap();
    assert_eq!(try_ack(&transport, held).await, (0, 5));
    drain(&transport, 0..5).await;
    assert_eq!(stream.backlog().await, 0);
    transport.close(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_written_before_it_is_confirmed_is_not_called_durable() {
    let own = Own::start().await;
    let stream = Stream::at(own.node.url(), "").await;
    for (setting, value, durable) in
        [("appendfsync", "everysec", false), ("appendfsync", "always", true), ("appendonly", "no", false)]
    {
        stream.run::<()>(&format!("CONFIG SET {setting} {value}")).await;
        assert_eq!(stream.consumer().await.capabilities().durable, durable, "{setting} {value}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_refuses_to_publish_and_goes_on_handing_over() {
    let own = Own::start().await;
    let stream = Stream::at(own.node.url(), "").await;
    stream.publish(0..50).await;
    let publisher = inbox_redis::publisher(&stream.url()).await.unwrap();
    let transport = stream.consumer().await;
    stream.run::<()>("CONFIG SET maxmemory 1mb").await;
    for refused in publisher.publish((50..53).map(numbered).collect()).await {
        let refused = refused.expect_err("full");
        assert_eq!(refused.kind(), TransportErrorKind::Unavailable, "{}", report(&refused));
    }
    let held = receive(&transport, 20).await;
    drop(held);
    drain(&transport, 0..50).await;
    stream.run::<()>("CONFIG SET maxmemory 0").await;
    publisher.publish(vec![numbered(50)]).await.remove(0).unwrap();
    drain(&transport, 50..51).await;
    transport.close(PATIENCE).await.unwrap();
}
