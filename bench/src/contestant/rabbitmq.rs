//! RabbitMQ, by lapin alone: one channel with one consumer.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use inbox::Bytes;
use lapin::{
    Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::time::timeout;

use super::{
    WAITING,
    consume::{Acks, Inlets, Record, SILENCE, Source},
    offsets::{Offsets, Place},
};

/// A consumer of a queue.
pub(crate) struct RabbitMq {
    connection: Connection,
    queue: String,
    tags: Tags,
}

/// Acknowledges all below the lowest delivery that is not done, at once: deliveries of a channel are numbered as records of
/// a partition are.
#[derive(Clone)]
pub(crate) struct Tags {
    channel: Channel,
    tags: Arc<Mutex<Offsets>>,
    /// A lower tag must not be acknowledged behind a higher one.
    in_order: Arc<tokio::sync::Mutex<()>>,
}

impl RabbitMq {
    /// Connects.
    pub(crate) async fn connect(server: &str, queue: &str) -> Result<Self> {
        let connection = Connection::connect(server, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let tags = Tags { channel, tags: Arc::default(), in_order: Arc::default() };
        Ok(Self { connection, queue: queue.to_owned(), tags })
    }
}

/// The channel is the only partition that there is.
fn place(tag: u64) -> Place {
    Place { partition: 0, offset: tag.cast_signed() }
}

impl Acks for Tags {
    type Mark = u64;

    async fn done(&self, marks: Vec<u64>) -> Result<()> {
        let marks: Vec<Place> = marks.into_iter().map(place).collect();
        let _in_order = self.in_order.lock().await;
        let passed = self.tags.lock().unwrap_or_else(PoisonError::into_inner).done(&marks);
        for place in passed {
            self.channel.basic_ack(place.offset.cast_unsigned(), BasicAckOptions { multiple: true }).await?;
        }
        Ok(())
    }
}

impl Source for RabbitMq {
    type Acks = Tags;

    fn acks(&self) -> Tags {
        self.tags.clone()
    }

    async fn feed(&mut self, inlets: Inlets<u64>) -> Result<()> {
        let channel = &self.tags.channel;
        channel.basic_qos(u16::try_from(WAITING)?, BasicQosOptions::default()).await?;
        let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer = channel.basic_consume(self.queue.as_str().into(), "".into(), options, table).await?;
        for at in 0..inlets.records {
            let next =
                timeout(SILENCE, consumer.next()).await.with_context(|| format!("silence after {at} records"))?;
            let Delivery { delivery_tag, properties, data, .. } = next.context("the consumer was cancelled")??;
            inlets.received();
            let id = properties.message_id().as_ref().map(|id| id.as_str().as_bytes());
            let record = Record::new(delivery_tag, id, Bytes::from(data))?;
            let key = properties.headers().as_ref().and_then(|headers| match headers.inner().get("message-key")? {
                AMQPValue::LongString(key) => Some(key.as_bytes()),
                _ => None,
            });
            self.tags.tags.lock().unwrap_or_else(PoisonError::into_inner).polled(place(delivery_tag));
            if inlets.lane(key).send(record).await.is_err() {
                // Its task has failed, and says why.
                return Ok(());
            }
        }
        Ok(())
    }

    async fn leave(self) -> Result<()> {
        Ok(self.connection.close(200, "OK".into()).await?)
    }
}
