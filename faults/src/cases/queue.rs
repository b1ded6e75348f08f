//! Queues that are deleted, and what stands in them.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::SubscriptionAdmin;
use inbox::rabbitmq::{RabbitMqAdmin, RabbitMqConfig};

use crate::{
    args::Broker,
    outcome::Outcome,
    servers::{LOCAL, pause},
    stage::{Context, Setup, Stage},
};

/// Deleted with work in flight, and made again, while the producer goes on. What the broker had confirmed goes with the
/// queue; what it confirms afterwards has to have its effect.
pub(crate) async fn remade(context: &mut Context) -> anyhow::Result<Outcome> {
    let broker = context.pair.broker;
    let messages = context.messages(12_000, 6_500);
    // More than consumers hold at that time, and little enough behind it.
    let mut stage = Stage::set(context, Setup { published_before: 0.7, ..Setup::new(messages) }).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(u64::from(messages) / 20).await?;
    let (first, publishing) = stage.publish_beside(Duration::from_millis(100)).await?;
    pause(Duration::from_millis(200)).await;
    stage.outcome.counted += u64::from(stage.is_at_work().await?);
    delete(broker, stage.scene.topic(false)).await?;
    let mut may_be_lost_until = Instant::now();
    // Longer than the producer's pauses: it finds no queue.
    pause(Duration::from_millis(700)).await;
    stage.scene.provision().await?;
    if broker == Broker::Pubsub {
        // It is the topic that confirms, also what no subscription is there for.
        may_be_lost_until = Instant::now();
    }
    let confirmed = publishing.confirmed().await?;
    stage.quiet().await?;
    let missing = stage.scene.missing(stage.load.payments()).await?;
    let arrives = |payment: usize| {
        let behind = stage.load.order()[first..].iter().zip(&confirmed);
        behind.clone().any(|(of, sent)| *of == payment && *sent > may_be_lost_until)
    };
    let lost = missing.iter().filter(|payment| arrives(**payment)).count();
    let in_time = confirmed.iter().filter(|sent| **sent > may_be_lost_until).count();
    eprint!("{} went with the queue, {in_time} were sent to the new one … ", missing.len());
    stage.outcome.expect(lost == 0, || format!("{lost} payments that were sent to the new queue have no effect"));
    stage.outcome.expect(in_time > 0, || "the producer was done before the queue was made again".into());
    stage.load.again(&missing);
    stage.finish(false).await
}

/// Copies side by side.
pub(crate) async fn same_batch(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(10_000, 2_000);
    let mut stage = Stage::set(context, Setup { twins: true, handler_us: 300, ..Setup::new(messages) }).await?;
    stage.spawn_all(2).await?;
    stage.finish(true).await
}

/// Deletes the queue of a URL with all that is in it.
async fn delete(broker: Broker, url: &str) -> anyhow::Result<()> {
    let parts = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    let name = || parts.and_then(|(_, rest)| rest.split('?').next()).context("a URL names a queue");
    let (_, behind) = url.split_once(LOCAL).context("a broker of this machine")?;
    let port: String = behind.chars().take_while(char::is_ascii_digit).collect();
    let endpoint = format!("http://{LOCAL}{port}");
    match broker {
        Broker::Rabbitmq => {
            let admin = RabbitMqAdmin::connect(RabbitMqConfig::from_url(url)?).await?;
            admin.delete().await?;
            admin.close().await;
        }
        Broker::Sqs => {
            let credentials = aws_credential_types::Credentials::new("test", "test", None, None, "faults");
            let config = aws_sdk_sqs::config::Builder::new()
                .region(aws_sdk_sqs::config::Region::new("us-east-1"))
                .endpoint_url(endpoint)
                .credentials_provider(credentials);
            let client = aws_sdk_sqs::Client::from_conf(config.build());
            let queue = client.get_queue_url().queue_name(name()?).send().await?.queue_url;
            client.delete_queue().set_queue_url(queue).send().await?;
        }
        Broker::Pubsub => {
            let (project, _) = parts.context("a URL names a project")?;
            let credentials = anonymous::Builder::new().build();
            let admin = SubscriptionAdmin::builder().with_endpoint(endpoint).with_credentials(credentials);
            let name = format!("projects/{project}/subscriptions/{}", name()?);
            admin.build().await?.delete_subscription().set_subscription(name).send().await?;
        }
        Broker::Kafka | Broker::Redis | Broker::Sqlite => anyhow::bail!("this broker's queue is not deleted"),
    }
    Ok(())
}
