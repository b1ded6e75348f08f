//! SQS, by Amazon's client alone: several receives of ten at once, and several requests that delete up to ten.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aws_sdk_sqs::{
    Client,
    types::{DeleteMessageBatchRequestEntry, Message, MessageAttributeValue},
};
use futures_util::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, FuturesUnordered},
};
use inbox::Bytes;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::timeout,
};

use super::consume::{Acks, Inlets, Record, SILENCE, Source};
use crate::queue;

/// How many messages a request takes.
const BATCH: usize = 10;
/// How many receives wait at once: as many as the adapter's default has at most.
const RECEIVES: usize = 8;
/// How many requests that delete are under way at once: as many as the adapter has.
const DELETES: usize = 8;
/// How long a request that deletes waits to be full.
const LINGER: Duration = Duration::from_millis(50);
/// How long a receive waits at the service, in seconds.
const WAIT: i32 = 4;
/// For how long what was received is hidden from others, in seconds: the adapter's default.
const HIDDEN: i32 = 30;

/// A queue and who deletes from it.
pub(crate) struct Sqs {
    client: Client,
    url: String,
    handles: UnboundedSender<String>,
    deleting: JoinSet<Result<()>>,
}

/// Where handles go that are to be deleted.
#[derive(Clone)]
pub(crate) struct Deletes(UnboundedSender<String>);

impl Sqs {
    /// Makes a client and looks for the queue.
    pub(crate) async fn connect(host: &str, name: &str) -> Result<Self> {
        let client = queue::sqs_client(host);
        let found = client.get_queue_url().queue_name(name).send().await?;
        let url = found.queue_url.context("the queue has no URL")?;
        let (handles, done) = unbounded_channel();
        let mut deleting = JoinSet::new();
        deleting.spawn(delete_all(client.clone(), url.clone(), done));
        Ok(Self { client, url, handles, deleting })
    }
}

/// The next ten handles, or those that come within [`LINGER`].
async fn some(mut handles: UnboundedReceiver<String>) -> Option<(Vec<String>, UnboundedReceiver<String>)> {
    let mut some = vec![handles.recv().await?];
    let more = async {
        while some.len() < BATCH
            && let Some(handle) = handles.recv().await
        {
            some.push(handle);
        }
    };
    // Late ones have a request of their own.
    drop(timeout(LINGER, more).await);
    Some((some, handles))
}

/// Deletes what comes.
async fn delete_all(client: Client, url: String, handles: UnboundedReceiver<String>) -> Result<()> {
    stream::unfold(handles, some)
        .map(|handles| delete(&client, &url, handles))
        .buffer_unordered(DELETES)
        .try_collect()
        .await
}

async fn delete(client: &Client, url: &str, handles: Vec<String>) -> Result<()> {
    let entries = handles.into_iter().enumerate().map(|(at, handle)| {
        DeleteMessageBatchRequestEntry::builder().id(at.to_string()).receipt_handle(handle).build()
    });
    let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
    let done = client.delete_message_batch().queue_url(url).set_entries(Some(entries)).send().await?;
    ensure!(done.failed.is_empty(), "{} messages were not deleted", done.failed.len());
    Ok(())
}

async fn receive(client: &Client, url: &str) -> Result<Vec<Message>> {
    let received = client
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(i32::try_from(BATCH)?)
        .wait_time_seconds(WAIT)
        .visibility_timeout(HIDDEN)
        .message_attribute_names("message-id")
        .message_attribute_names("message-key")
        .send()
        .await?;
    Ok(received.messages.unwrap_or_default())
}

impl Acks for Deletes {
    type Mark = String;

    async fn done(&self, marks: Vec<String>) -> Result<()> {
        // Where it fails, the task that deletes has failed, and says why.
        marks.into_iter().for_each(|handle| drop(self.0.send(handle)));
        Ok(())
    }
}

impl Source for Sqs {
    type Acks = Deletes;

    fn acks(&self) -> Deletes {
        Deletes(self.handles.clone())
    }

    async fn feed(&mut self, inlets: Inlets<String>) -> Result<()> {
        let mut receiving: FuturesUnordered<_> = (0..RECEIVES).map(|_| receive(&self.client, &self.url)).collect();
        let mut at = 0;
        while at < inlets.records {
            let next =
                timeout(SILENCE, receiving.next()).await.with_context(|| format!("silence after {at} records"))?;
            receiving.push(receive(&self.client, &self.url));
            for message in next.context("nobody receives")?? {
                inlets.received();
                at += 1;
                let text =
                    |attribute: Option<&MessageAttributeValue>| attribute.and_then(|one| one.string_value.clone());
                let attributes = message.message_attributes.as_ref();
                let id = text(attributes.and_then(|all| all.get("message-id")));
                let key = text(attributes.and_then(|all| all.get("message-key")));
                let handle = message.receipt_handle.context("a message has no handle")?;
                let body = Bytes::from(message.body.unwrap_or_default());
                let record = Record::new(handle, id.as_deref().map(str::as_bytes), body)?;
                if inlets.lane(key.as_deref().map(str::as_bytes)).send(record).await.is_err() {
                    // Its task has failed, and says why.
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn settled(&mut self) -> Result<()> {
        // The last way to the task that deletes is gone with this one, so it ends when it has deleted all.
        self.handles = unbounded_channel().0;
        self.deleting.join_next().await.context("nobody deletes")??
    }

    async fn leave(self) -> Result<()> {
        Ok(())
    }
}
