//! Queues and exchanges: making them, and what an operator or a test asks of them.

use std::fmt;

use inbox_core::{TransportError, TransportErrorKind};
use lapin::{
    Channel, ExchangeKind, Queue,
    options::{
        ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
        QueuePurgeOptions,
    },
    types::{AMQPValue, FieldTable},
};

use tokio::{sync::Mutex, time::Instant};

use crate::{
    config::{ExchangeType, QueueType, RabbitMqConfig},
    connection::{self, Connected},
    error,
};

/// A connection for questions about one queue.
///
/// Everything that it does fails with `Unavailable` when the broker has not answered within the connect timeout.
pub struct RabbitMqAdmin {
    config: RabbitMqConfig,
    connected: Connected,
    /// Open until the connection is: closing both at once is an error to lapin.
    channel: Mutex<Option<Channel>>,
}

impl RabbitMqAdmin {
    /// Connects. The queue need not exist.
    ///
    /// # Errors
    /// `InvalidConfig`; `Unavailable`; `Unauthorized`.
    pub async fn connect(config: RabbitMqConfig) -> Result<Self, TransportError> {
        config.check()?;
        let connected = connection::open(&config, "connect", Instant::now() + config.connect_timeout).await?;
        Ok(Self { config, connected, channel: Mutex::default() })
    }

    /// Makes the exchange and the queue that the configuration names, durable, and binds one to the other. What is there
    /// stays as it is.
    ///
    /// # Errors
    /// `InvalidConfig` when neither is named; `Unauthorized` without the permission to configure them; `Unavailable`.
    pub async fn provision(&self) -> Result<(), TransportError> {
        const OPERATION: &str = "provision";
        let (exchange, key) = self.config.target()?;
        if !exchange.is_empty() {
            let made =
                self.run(OPERATION, ("exchange", exchange), async |c| self.make_exchange(c, exchange).await).await;
            // Another kind of exchange, or no permission to make one that may be there.
            if let Err(error) = made {
                let there = async |channel| passive_exchange(channel, exchange).await;
                self.run(OPERATION, ("exchange", exchange), there).await.map_err(|_| error)?;
            }
        }
        let Some(queue) = &self.config.queue else { return Ok(()) };
        let made = self.run(OPERATION, ("queue", queue), async |channel| self.make_queue(channel, queue).await).await;
        if let Err(error) = made {
            let there = async |channel| passive_queue(channel, queue).await;
            self.run(OPERATION, ("queue", queue), there).await.map_err(|_| error)?;
        }
        if exchange.is_empty() {
            return Ok(());
        }
        let bind = async |channel: Channel| {
            let (queue, exchange) = (queue.as_str().into(), exchange.into());
            channel.queue_bind(queue, exchange, key.into(), QueueBindOptions::default(), FieldTable::default()).await
        };
        self.run(OPERATION, ("queue", queue), bind).await
    }

    async fn make_exchange(&self, channel: Channel, exchange: &str) -> Result<(), lapin::Error> {
        let kind = match self.config.exchange_type {
            ExchangeType::Fanout => ExchangeKind::Fanout,
            ExchangeType::Direct => ExchangeKind::Direct,
            ExchangeType::Topic => ExchangeKind::Topic,
            ExchangeType::Headers => ExchangeKind::Headers,
        };
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await
    }

    async fn make_queue(&self, channel: Channel, queue: &str) -> Result<(), lapin::Error> {
        let mut arguments = FieldTable::default();
        if self.config.queue_type == QueueType::Quorum {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.map(drop)
    }

    /// How many messages of the queue wait for a consumer. Those that consumers hold unacknowledged are not among them:
    /// over AMQP nobody can ask for these ([`RabbitMqTransport::unsettled`](crate::RabbitMqTransport::unsettled) knows
    /// them of one consumer).
    ///
    /// # Errors
    /// `NotFound`; `Unavailable`.
    pub async fn ready(&self) -> Result<u64, TransportError> {
        let queue = self.config.required_queue()?;
        let ask = async |channel| passive_queue(channel, queue).await;
        self.run("count messages", ("queue", queue), ask).await.map(|queue| queue.message_count().into())
    }

    /// Removes the messages that wait for a consumer; how many there were.
    ///
    /// # Errors
    /// `NotFound`; `Unauthorized`; `Unavailable`.
    pub async fn purge(&self) -> Result<u64, TransportError> {
        let queue = self.config.required_queue()?;
        let purge = async |channel: Channel| channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await;
        self.run("purge", ("queue", queue), purge).await.map(Into::into)
    }

    /// Deletes the queue with all that is in it, and then the exchange, unless another queue is bound to it. What is not
    /// there is left so.
    ///
    /// # Errors
    /// `InvalidConfig` when no queue is named; `Unauthorized`; `Unavailable`.
    pub async fn delete(&self) -> Result<(), TransportError> {
        const OPERATION: &str = "delete";
        let queue = self.config.required_queue()?;
        let delete = async |channel: Channel| channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await;
        self.run(OPERATION, ("queue", queue), delete).await?;
        let Some(exchange) = &self.config.exchange else { return Ok(()) };
        let options = ExchangeDeleteOptions { if_unused: true, nowait: false };
        let delete = async |channel: Channel| match channel.exchange_delete(exchange.as_str().into(), options).await {
            Err(error) if error::code_of(&error) == Some(error::PRECONDITION_FAILED) => Ok(()),
            done => done,
        };
        self.run(OPERATION, ("exchange", exchange), delete).await
    }

    /// Leaves the broker. Dropping it does the same in the background.
    pub async fn close(self) {
        self.connected.close().await;
    }

    /// Asks the broker something about an exchange or a queue, on a channel that the last refusal has not ended.
    async fn run<T>(
        &self,
        operation: &'static str,
        about: (&str, &str),
        question: impl AsyncFnOnce(Channel) -> Result<T, lapin::Error>,
    ) -> Result<T, TransportError> {
        let answered = async {
            let mut slot = self.channel.lock().await;
            let channel = match slot.take().filter(|channel| channel.status().connected()) {
                Some(channel) => channel,
                None => self.connected.amqp.create_channel().await?,
            };
            question(slot.insert(channel).clone()).await
        };
        match tokio::time::timeout(self.config.connect_timeout, answered).await {
            Ok(answer) => answer.map_err(|error| refused(&self.config, operation, about, error)),
            Err(_) => Err(connection::silent(&self.config, operation)),
        }
    }
}

impl fmt::Debug for RabbitMqAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqAdmin").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Makes sure that there is a queue or an exchange. Whether it may be used is known when it is.
pub(crate) async fn verify(
    connected: &Connected,
    config: &RabbitMqConfig,
    about: (&str, &str),
    deadline: Instant,
) -> Result<(), TransportError> {
    let asking = async {
        let channel = connected.amqp.create_channel().await?;
        match about {
            ("queue", name) => passive_queue(channel.clone(), name).await.map(drop)?,
            (_, name) => passive_exchange(channel.clone(), name).await?,
        }
        // Not by dropping it: the connection may be closed next, and closing both at once is an error to lapin.
        channel.close(200, "OK".into()).await
    };
    match tokio::time::timeout_at(deadline, asking).await {
        Ok(answer) => answer.map_err(|error| refused(config, "connect", about, error)),
        Err(_) => Err(connection::silent(config, "connect")),
    }
}

/// A question about something that is not there ends the channel that it was asked on.
async fn passive_queue(channel: Channel, name: &str) -> Result<Queue, lapin::Error> {
    channel.queue_declare(name.into(), QueueDeclareOptions::default().passive(), FieldTable::default()).await
}

async fn passive_exchange(channel: Channel, name: &str) -> Result<(), lapin::Error> {
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    // Its kind does not matter to the broker then.
    channel.exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default()).await
}

fn refused(
    config: &RabbitMqConfig,
    operation: &'static str,
    (what, name): (&str, &str),
    error: lapin::Error,
) -> TransportError {
    let (name, vhost) = (name.escape_debug(), config.vhost.escape_debug());
    let context = match error::kind_of(&error) {
        TransportErrorKind::NotFound => format!(
            "the {what} `{name}` does not exist in the virtual host `{vhost}`; `inbox::provision(url)` creates it"
        ),
        TransportErrorKind::Unauthorized => {
            format!("the user `{}` may not use the {what} `{name}`", config.user.escape_debug())
        }
        _ => format!("the {what} `{name}` in the virtual host `{vhost}`"),
    };
    error::of(operation, error).context(context)
}
