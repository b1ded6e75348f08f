//! Connections that say nothing, or stop in the middle of a COMMIT.

use std::time::Instant;

use crate::{
    outcome::Outcome,
    proxy::Mode,
    servers::pause,
    stage::{Context, Setup, Stage},
};

/// Nothing passes for a while, and nobody is told.
pub(crate) async fn black_hole(context: &mut Context, broker: bool) -> anyhow::Result<Outcome> {
    let messages = context.messages(60_000, 20_000);
    let setup = Setup { broker_by_proxy: broker, store_by_proxy: !broker, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(u64::from(messages) / 20).await?;
    let held = context.args.black_hole();
    set(context, broker, Mode::Hold).await?;
    stage.outcome.counted += 1;
    pause(held).await;
    set(context, broker, Mode::Pass).await?;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}

async fn set(context: &mut Context, broker: bool, mode: Mode) -> anyhow::Result<()> {
    if broker {
        context.servers.kafka().await?.proxy.set(mode);
    } else {
        context.servers.postgres().await?.proxy.set(mode);
    }
    Ok(())
}

/// One COMMIT in eight is cut, with or without having reached the server.
pub(crate) async fn commits(context: &mut Context, forward: bool) -> anyhow::Result<Outcome> {
    let messages = context.messages(16_000, 6_000);
    let setup = Setup { store_by_proxy: true, handler_us: 300, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(u64::from(messages) / 10).await?;
    let before = context.servers.postgres().await?.proxy.cuts();
    set(context, false, Mode::CutCommits { forward, every: 8 }).await?;
    stage.until_acked(u64::from(messages) / 2).await?;
    set(context, false, Mode::Pass).await?;
    stage.outcome.counted += context.servers.postgres().await?.proxy.cuts() - before;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}
