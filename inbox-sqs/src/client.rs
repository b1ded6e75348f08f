//! The SDK's client, and the queue's own URL.

use std::{sync::Arc, time::Duration};

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_sqs::{
    Client,
    config::{Builder, Credentials, Region, StalledStreamProtectionConfig, retry::RetryConfig, timeout::TimeoutConfig},
    types::QueueAttributeName as Attribute,
};
use inbox_core::{TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    config::{Login, Queue, SqsConfig},
    error,
};

/// The pause between two tries to reach the service while connecting.
const PAUSE: Duration = Duration::from_millis(250);

/// The largest message that SQS takes anywhere.
const LARGEST: usize = 1 << 20;

/// A queue that was found.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) client: Client,
    pub(crate) url: String,
    pub(crate) config: Arc<SqsConfig>,
    /// The largest message of the queue, in bytes, attributes included.
    pub(crate) max_body: usize,
}

impl Remote {
    /// Makes a client and asks for the queue.
    pub(crate) async fn connect(config: SqsConfig, operation: &'static str) -> Result<Self, TransportError> {
        Self::open(config, operation, false).await
    }

    /// The same for credentials that may be allowed to send and nothing else.
    pub(crate) async fn connect_to_send(config: SqsConfig, operation: &'static str) -> Result<Self, TransportError> {
        Self::open(config, operation, true).await
    }

    async fn open(config: SqsConfig, operation: &'static str, blind: bool) -> Result<Self, TransportError> {
        config.check()?;
        let config = Arc::new(config);
        let deadline = Instant::now() + config.connect_timeout;
        let client = in_time(&config, operation, deadline, client(&config, operation)).await?;
        loop {
            let found = async {
                let url = url(&client, &config, operation).await?;
                let max_body = max_body(&client, &config, &url, operation, blind).await?;
                Ok(Self { client: client.clone(), url, config: Arc::clone(&config), max_body })
            };
            match in_time(&config, operation, deadline, found).await {
                // The service may be starting.
                Err(error) if error.is_retryable() && Instant::now() + PAUSE < deadline => sleep(PAUSE).await,
                done => return done,
            }
        }
    }
}

/// Waits for something until the deadline.
pub(crate) async fn in_time<T>(
    config: &SqsConfig,
    operation: &'static str,
    deadline: Instant,
    work: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    timeout_at(deadline, work).await.unwrap_or_else(|_| {
        Err(TransportError::new(TransportErrorKind::Unavailable, operation).context(format!(
            "no answer from {}, or from whoever gives AWS credentials, within `connect_timeout`",
            config.place()
        )))
    })
}

/// The client of a configuration.
pub(crate) async fn client(config: &SqsConfig, operation: &'static str) -> Result<Client, TransportError> {
    let mut builder = config.sdk.as_deref().map_or_else(Builder::new, Builder::from);
    builder.set_region(Some(Region::new(config.region.clone())));
    if let Some(endpoint) = &config.endpoint {
        builder.set_endpoint_url(Some(endpoint.clone()));
    }
    if let Some(credentials) = credentials(config, operation).await? {
        builder.set_credentials_provider(Some(credentials));
    }
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(config.request_timeout)
        .operation_attempt_timeout(config.request_timeout);
    builder.set_timeout_config(Some(timeouts.build()));
    builder.set_retry_config(Some(RetryConfig::standard()));
    // Meant for downloads. A receive that waits looks stalled to it, and attempts have a timeout of their own.
    builder.set_stalled_stream_protection(Some(StalledStreamProtectionConfig::disabled()));
    Ok(Client::from_conf(builder.build()))
}

/// What overrides the client's settings for a receive: it waits at the service, and is not sent again by the SDK, since
/// the leases of what it brings are counted from when it was sent.
pub(crate) fn receiving(config: &SqsConfig) -> Builder {
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(config.waits() + config.request_timeout).build();
    Builder::new().timeout_config(timeouts).retry_config(RetryConfig::disabled())
}

/// Those that were given, else none where the SDK's own configuration has some, else the chain of every AWS program.
async fn credentials(
    config: &SqsConfig,
    operation: &'static str,
) -> Result<Option<SharedCredentialsProvider>, TransportError> {
    if let Some(Login { access_key, secret_key, session_token }) = &config.login {
        let token = session_token.as_ref().map(|token| token.expose().clone());
        let given = Credentials::new(access_key, secret_key.expose(), token, None, "inbox-sqs");
        return Ok(Some(SharedCredentialsProvider::new(given)));
    }
    if config.sdk.as_ref().is_some_and(|sdk| sdk.credentials_provider().is_some()) {
        return Ok(None);
    }
    if config.is_in_the_clear() {
        // A stand-in takes any. A real account's are not shown to whoever listens there.
        let made_up = Credentials::new("test", "test", None, None, "inbox-sqs");
        return Ok(Some(SharedCredentialsProvider::new(made_up)));
    }
    let chain = DefaultCredentialsChain::builder().region(Region::new(config.region.clone())).build().await;
    // Asked here once, so that it is said plainly when there are none.
    chain.provide_credentials().await.map_err(|error| error::credentials(operation, &error))?;
    Ok(Some(SharedCredentialsProvider::new(chain)))
}

/// The queue's own URL: as it was given, or as the service says.
pub(crate) async fn url(
    client: &Client,
    config: &SqsConfig,
    operation: &'static str,
) -> Result<String, TransportError> {
    let name = match &config.queue {
        Queue::Url { url, .. } => return Ok(url.clone()),
        Queue::Name(name) => name,
    };
    let answer = client
        .get_queue_url()
        .queue_name(name)
        .set_queue_owner_aws_account_id(config.account.clone())
        .send()
        .await
        .map_err(|error| error::of(operation, config, &error))?;
    answer.queue_url.ok_or_else(|| {
        TransportError::new(TransportErrorKind::Unexpected, operation).context("the service named no URL of the queue")
    })
}

/// How large a message of the queue may be. Asking is how it is known that the queue is there and the credentials are good.
async fn max_body(
    client: &Client,
    config: &SqsConfig,
    url: &str,
    operation: &'static str,
    blind: bool,
) -> Result<usize, TransportError> {
    let asked =
        client.get_queue_attributes().queue_url(url).attribute_names(Attribute::MaximumMessageSize).send().await;
    let answer = match asked {
        Ok(answer) => answer,
        Err(error) if blind && error::is_denied(&error) => return Ok(LARGEST),
        Err(error) => return Err(error::of(operation, config, &error)),
    };
    let size = answer.attributes().and_then(|all| all.get(&Attribute::MaximumMessageSize)?.parse().ok());
    Ok(size.unwrap_or(LARGEST))
}
