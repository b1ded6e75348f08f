//! The task that asks the service for messages.
//!
//! One receive waits at the service while there is nothing; as long as they come back full, twice as many are sent at once,
//! up to `polls`. A receive that was sent is never dropped: what the service gives to one that nobody reads is invisible to
//! everybody until its lease ends.

use std::{sync::Arc, time::Duration};

use aws_sdk_sqs::types::MessageSystemAttributeName as System;
use futures_util::{StreamExt, stream::FuturesUnordered};
use inbox_core::{TransportError, report};
use tokio::time::{Instant, sleep_until};

use crate::{
    client::{Remote, receiving},
    convert, error,
    handover::{Came, Shared},
};

/// Between two tries while the service cannot be asked, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Between two receives that found nothing, where the service does not wait by itself.
const IDLE: Duration = Duration::from_millis(200);

/// Asks for messages until the transport is closed.
pub(crate) async fn poll(shared: Arc<Shared>, remote: Remote) {
    let mut under_way = FuturesUnordered::new();
    let mut at_once = 1;
    let mut backoff = BACKOFF.0;
    let mut not_before = Instant::now();
    loop {
        let ready = Instant::now() >= not_before;
        while ready && under_way.len() < at_once && !shared.closed.is_cancelled() {
            let Some(room) = shared.reserve() else { break };
            under_way.push(receive(&remote, room));
        }
        let answer = tokio::select! {
            biased;
            () = shared.closed.cancelled() => break,
            Some(answer) = under_way.next() => answer,
            () = shared.asked.notified() => continue,
            () = sleep_until(not_before), if !ready => continue,
        };
        match take(&shared, &remote, answer) {
            Found::Full => at_once = (at_once * 2).min(remote.config.polls),
            Found::Some => {}
            Found::Nothing { after } => {
                at_once = 1;
                if after < IDLE {
                    not_before = Instant::now() + IDLE;
                }
            }
            Found::Failed => {
                at_once = 1;
                not_before = Instant::now() + backoff.mul_f64(0.5 + 0.5 * fastrand::f64());
                backoff = (backoff * 2).min(BACKOFF.1);
                continue;
            }
        }
        backoff = BACKOFF.0;
    }
    while let Some(answer) = under_way.next().await {
        take(&shared, &remote, answer);
    }
    shared.drained.send_replace(true);
}

/// What a receive has brought, in short.
enum Found {
    /// As much as was asked for.
    Full,
    Some,
    Nothing {
        after: Duration,
    },
    Failed,
}

struct Answer {
    reserved: usize,
    since: Instant,
    messages: Result<Vec<Came>, TransportError>,
}

async fn receive(remote: &Remote, reserved: usize) -> Answer {
    let config = &remote.config;
    let seconds = |time: Duration| i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
    let since = Instant::now();
    let sent = remote
        .client
        .receive_message()
        .queue_url(&remote.url)
        .max_number_of_messages(i32::try_from(reserved).unwrap_or(1))
        .wait_time_seconds(seconds(config.waits()))
        .visibility_timeout(seconds(config.lease))
        .message_attribute_names("All")
        .message_system_attribute_names(System::ApproximateReceiveCount)
        .message_system_attribute_names(System::MessageGroupId)
        .message_system_attribute_names(System::SentTimestamp)
        .customize()
        .config_override(receiving(config))
        .send()
        .await;
    let came = |mut received: aws_sdk_sqs::types::Message| {
        // Without it a message can be neither deleted nor given back, and comes again when its lease ends.
        let handle = received.receipt_handle.take()?;
        Some(Came {
            handle,
            group: convert::group(&received),
            coordinates: received.message_id.clone().unwrap_or_default(),
            count: convert::count(&received),
            message: convert::message(received, &config.names, config.is_fifo(), config.sns),
        })
    };
    let messages = match sent {
        Ok(found) => Ok(found.messages.unwrap_or_default().into_iter().filter_map(came).collect()),
        Err(error) => Err(error::of("receive", config, &error)),
    };
    Answer { reserved, since, messages }
}

fn take(shared: &Shared, remote: &Remote, answer: Answer) -> Found {
    let Answer { reserved, since, messages } = answer;
    match messages {
        Ok(messages) => {
            shared.set_connected(true);
            let found = match messages.len() {
                0 => Found::Nothing { after: since.elapsed() },
                many if many >= reserved => Found::Full,
                _ => Found::Some,
            };
            shared.came(reserved, messages, since, remote.config.lease);
            found
        }
        Err(error) => {
            shared.set_connected(false);
            shared.came(reserved, Vec::new(), since, remote.config.lease);
            tracing::warn!(error = %report(&error), "receiving failed; it is tried again");
            Found::Failed
        }
    }
}
