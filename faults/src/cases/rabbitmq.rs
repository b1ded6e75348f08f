//! What RabbitMQ itself closes.

use std::time::{Duration, Instant};

use xtask::servers::rabbitmq::CONSUMER_TIMEOUT;

use crate::{
    outcome::Outcome,
    servers::{RabbitMq, pause},
    stage::{Context, Setup, Stage},
};

/// What the broker logs when it closes a channel because of its `consumer_timeout`.
const TIMED_OUT: &str = "has timed out waiting for delivery acknowledgement";

/// All connections, again and again; the producer's are among them.
pub(crate) async fn connections(context: &mut Context) -> anyhow::Result<Outcome> {
    let times: u32 = if context.args.short { 2 } else { 10 };
    let messages = context.messages(60_000, 8_000);
    let mut stage = Stage::set(context, Setup { published_before: 0.8, ..Setup::new(messages) }).await?;
    stage.spawn_all(2).await?;
    let (_, publishing) = stage.publish_beside(Duration::from_millis(100)).await?;
    for _ in 0..times {
        if !stage.until_acked(u64::from(messages) / 50).await? {
            break;
        }
        let is_at_work = stage.is_at_work().await?;
        context.servers.rabbitmq()?.control(&["close_all_connections", "--global", "maintenance"])?;
        stage.outcome.counted += u64::from(is_at_work);
    }
    publishing.confirmed().await?;
    stage.finish(false).await
}

/// A timeout of the broker's that some handlers do not keep.
pub(crate) async fn channel(context: &mut Context) -> anyhow::Result<Outcome> {
    const SHORT: u32 = 3_000;
    let messages = context.messages(4_000, 2_000);
    let mut stage = Stage::set(context, Setup::new(messages)).await?;
    set_timeout(context.servers.rabbitmq()?, SHORT)?;
    let done = slow_handlers(context, &mut stage, Duration::from_millis(SHORT.into())).await;
    set_timeout(context.servers.rabbitmq()?, CONSUMER_TIMEOUT)?;
    done?;
    stage.finish(false).await
}

/// Works until some handlers have taken twice the timeout, and counts the channels that it has cost.
async fn slow_handlers(context: &mut Context, stage: &mut Stage, timeout: Duration) -> anyhow::Result<()> {
    let before = context.servers.rabbitmq()?.node.has_logged(TIMED_OUT);
    let (payments, slow) = (stage.load.payments(), timeout * 2);
    let every = payments / if context.args.short { 1 } else { 4 };
    for place in 0..2 {
        let slow = [format!("--slow-every={every}"), format!("--slow-ms={}", slow.as_millis())];
        stage.spawn(place, &slow).await?;
    }
    let began = Instant::now();
    while began.elapsed() < slow * 5 && usize::try_from(stage.scene.effects().await?)? < payments {
        pause(Duration::from_millis(200)).await;
    }
    let closed = context.servers.rabbitmq()?.node.has_logged(TIMED_OUT) - before;
    stage.outcome.counted += closed as u64;
    Ok(())
}

/// Sets the timeout of channels that are opened from now on, in milliseconds.
fn set_timeout(rabbitmq: &RabbitMq, timeout: u32) -> anyhow::Result<()> {
    rabbitmq.control(&["eval", &format!("application:set_env(rabbit, consumer_timeout, {timeout}).")])
}
