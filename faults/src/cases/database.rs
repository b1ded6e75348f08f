//! A database that goes away.

use std::time::{Duration, Instant};

use inbox::postgres::sqlx::{self, Connection as _, PgConnection};
use xtask::servers::postgres::Stop;

use crate::{
    outcome::Outcome,
    servers::pause,
    stage::{Context, Setup, Stage},
};

/// Two instances at work, with enough left for the length of an outage.
async fn at_work(context: &mut Context) -> anyhow::Result<Stage> {
    let messages = context.messages(30_000, 10_000);
    let mut stage = Stage::set(context, Setup::new(messages)).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(u64::from(messages) / 10).await?;
    Ok(stage)
}

/// Stopped, and started later.
pub(crate) async fn stop(context: &mut Context) -> anyhow::Result<Outcome> {
    let mut stage = at_work(context).await?;
    context.servers.postgres().await?.stop(Stop::Fast)?;
    stage.outcome.counted += 1;
    pause(context.args.outage()).await;
    context.servers.postgres().await?.start()?;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}

/// Crashes, and comes back at once.
pub(crate) async fn crash(context: &mut Context) -> anyhow::Result<Outcome> {
    let mut stage = at_work(context).await?;
    context.servers.postgres().await?.stop(Stop::Immediate)?;
    stage.outcome.counted += 1;
    context.servers.postgres().await?.start()?;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}

/// Backends are terminated one by one.
pub(crate) async fn terminate(context: &mut Context) -> anyhow::Result<Outcome> {
    let mut stage = at_work(context).await?;
    let mut own = PgConnection::connect(stage.scene.store(false)).await?;
    let until = Instant::now() + context.args.outage() / 2;
    while Instant::now() < until {
        // One that is in a transaction, so that it hits work.
        let hit: Option<bool> = sqlx::query_scalar(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
             AND pid <> pg_backend_pid() AND application_name = 'inbox' AND xact_start IS NOT NULL \
             ORDER BY random() LIMIT 1",
        )
        .fetch_optional(&mut own)
        .await?;
        stage.outcome.counted += u64::from(hit == Some(true));
        pause(Duration::from_millis(150)).await;
    }
    let ended = Instant::now();
    own.close().await?;
    stage.resumed(ended).await?;
    stage.finish(true).await
}

/// Becomes a standby, and is promoted later: what a failover looks like to those who stay connected to the old address.
pub(crate) async fn read_only(context: &mut Context) -> anyhow::Result<Outcome> {
    let mut stage = at_work(context).await?;
    let postgres = context.servers.postgres().await?;
    postgres.stop(Stop::Fast)?;
    postgres.cluster.be_standby()?;
    postgres.start()?;
    stage.outcome.counted += 1;
    pause(context.args.outage()).await;
    let postgres = context.servers.postgres().await?;
    tokio::task::block_in_place(|| postgres.cluster.promote())?;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}
