//! Questions to the service, and making what is missing.

use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use inbox_core::{TransportError, TransportErrorKind, capability::MaxAge};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::{
    client::{self, Remote, in_time},
    config::SqsConfig,
    error,
};

/// The longest that any queue keeps a message.
const LONGEST: Duration = Duration::from_secs(14 * 86_400);
/// How long a queue keeps a message unless it says otherwise.
const USUAL: Duration = Duration::from_secs(4 * 86_400);
/// Between two tries while the service cannot be asked, or a queue of this name was just deleted.
const PAUSE: Duration = Duration::from_millis(250);

/// Makes the queue unless it is there.
pub(crate) async fn provision(config: &SqsConfig) -> Result<(), TransportError> {
    const OPERATION: &str = "provision";
    config.check()?;
    let deadline = Instant::now() + config.connect_timeout;
    let client = in_time(config, OPERATION, deadline, client::client(config, OPERATION)).await?;
    loop {
        let made = async {
            // Asked first: making one that is there is refused when it was made with other attributes.
            match client
                .get_queue_url()
                .queue_name(config.name())
                .set_queue_owner_aws_account_id(config.account.clone())
                .send()
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) => match error::of(OPERATION, config, &error) {
                    error if error.kind() == TransportErrorKind::NotFound => {}
                    error => return Err(error),
                },
            }
            let mut request = client.create_queue().queue_name(config.name());
            if config.is_fifo() {
                request = request.attributes(Attribute::FifoQueue, "true");
            }
            request.send().await.map(drop).map_err(|error| error::of(OPERATION, config, &error))
        };
        match in_time(config, OPERATION, deadline, made).await {
            Err(error) if error.is_retryable() && Instant::now() + PAUSE < deadline => sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// How many messages the queue holds: those that are visible, held by somebody, or delayed.
pub(crate) async fn backlog(config: SqsConfig) -> Result<u64, TransportError> {
    const OPERATION: &str = "count messages";
    let remote = Remote::connect(config, OPERATION).await?;
    let names = [
        Attribute::ApproximateNumberOfMessages,
        Attribute::ApproximateNumberOfMessagesNotVisible,
        Attribute::ApproximateNumberOfMessagesDelayed,
    ];
    let request = remote.client.get_queue_attributes().queue_url(&remote.url).set_attribute_names(Some(names.to_vec()));
    let answer = request.send().await.map_err(|error| error::of(OPERATION, &remote.config, &error))?;
    let all = answer.attributes();
    Ok(names.iter().filter_map(|name| all?.get(name)?.parse::<u64>().ok()).sum())
}

/// How old a message can be that the queue hands over: it has waited here, then in the dead-letter queue, was moved back
/// once, and waited here again.
pub(crate) async fn max_age(remote: &Remote) -> Result<MaxAge, TransportError> {
    const OPERATION: &str = "max_age";
    let names = vec![Attribute::MessageRetentionPeriod, Attribute::RedrivePolicy];
    let request = remote.client.get_queue_attributes().queue_url(&remote.url).set_attribute_names(Some(names));
    let answer = request.send().await.map_err(|error| error::of(OPERATION, &remote.config, &error))?;
    let all = answer.attributes();
    let own = retention(all.and_then(|all| all.get(&Attribute::MessageRetentionPeriod)));
    let policy =
        all.and_then(|all| all.get(&Attribute::RedrivePolicy)).and_then(|text| serde_json::from_str(text).ok());
    let Some(Redrive { target }) = policy else { return Ok(MaxAge::AtMost(own)) };
    Ok(MaxAge::AtMost(own + dead_letters(remote, &target).await + own))
}

fn retention(seconds: Option<&String>) -> Duration {
    seconds.and_then(|seconds| seconds.parse().ok()).map_or(USUAL, Duration::from_secs)
}

#[derive(Deserialize)]
struct Redrive {
    #[serde(rename = "deadLetterTargetArn")]
    target: String,
}

/// How long the dead-letter queue keeps a message. Who may not ask is told the longest that there is.
async fn dead_letters(remote: &Remote, target: &str) -> Duration {
    let asked = async {
        let mut parts = target.rsplit(':');
        let (name, account) = (parts.next()?, parts.next()?);
        let url = remote.client.get_queue_url().queue_name(name).queue_owner_aws_account_id(account).send().await;
        let request = remote
            .client
            .get_queue_attributes()
            .queue_url(url.ok()?.queue_url?)
            .attribute_names(Attribute::MessageRetentionPeriod);
        let answer = request.send().await.ok()?;
        answer.attributes()?.get(&Attribute::MessageRetentionPeriod).cloned()
    };
    match asked.await {
        Some(seconds) => retention(Some(&seconds)),
        None => LONGEST,
    }
}
