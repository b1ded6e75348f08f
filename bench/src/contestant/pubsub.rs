//! Pub/Sub, by Google's client alone: its streams and their handlers.

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream};
use google_cloud_pubsub::{
    client::Subscriber,
    subscriber::{MessageStream, ShutdownToken, handler::Handler},
};
use tokio::time::timeout;

use super::{
    WAITING,
    consume::{Acks, Inlets, Record, SILENCE, Source},
};
use crate::queue;

/// How many streams are read at once.
const STREAMS: usize = 1;

/// A subscription.
pub(crate) struct Pubsub {
    subscriber: Subscriber,
    path: String,
    streams: Vec<ShutdownToken>,
}

/// Acknowledges by the handler that came with each message.
#[derive(Clone)]
pub(crate) struct Handlers;

impl Pubsub {
    /// Makes a client.
    pub(crate) async fn connect(endpoint: &str, project: &str, name: &str) -> Result<Self> {
        let subscriber =
            Subscriber::builder().with_endpoint(endpoint).with_credentials(queue::anonymous()).build().await?;
        let path = format!("projects/{project}/subscriptions/{name}");
        Ok(Self { subscriber, path, streams: Vec::new() })
    }
}

impl Acks for Handlers {
    type Mark = Handler;

    async fn done(&self, marks: Vec<Handler>) -> Result<()> {
        marks.into_iter().for_each(Handler::ack);
        Ok(())
    }
}

impl Source for Pubsub {
    type Acks = Handlers;

    fn acks(&self) -> Handlers {
        Handlers
    }

    async fn feed(&mut self, inlets: Inlets<Handler>) -> Result<()> {
        let streams: Vec<MessageStream> = (0..STREAMS)
            .map(|_| {
                let stream = self.subscriber.subscribe(&self.path);
                stream.set_max_outstanding_messages(i64::try_from(WAITING / STREAMS).unwrap_or(0)).build()
            })
            .collect();
        self.streams = streams.iter().map(MessageStream::shutdown_token).collect();
        let one = |stream: MessageStream| {
            Box::pin(stream::unfold(stream, async |mut stream| Some((stream.next().await?, stream))))
        };
        let mut all = stream::select_all(streams.into_iter().map(one));
        for at in 0..inlets.records {
            let next = timeout(SILENCE, all.next()).await.with_context(|| format!("silence after {at} records"))?;
            let (message, handler) = next.context("the streams have ended")??;
            inlets.received();
            let id = message.attributes.get("message-id").map(String::as_bytes);
            let record = Record::new(handler, id, message.data)?;
            if inlets.lane(Some(message.ordering_key.as_bytes())).send(record).await.is_err() {
                // Its task has failed, and says why.
                return Ok(());
            }
        }
        Ok(())
    }

    async fn leave(self) -> Result<()> {
        // What is acknowledged is sent within a tenth of a second.
        for stream in self.streams {
            stream.shutdown().await;
        }
        Ok(())
    }
}
