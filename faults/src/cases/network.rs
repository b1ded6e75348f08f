//! Connections that say nothing, are cut, or stop in the middle of a COMMIT.

use std::time::{Duration, Instant};

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
    set(context, &stage, broker, Mode::Hold).await?;
    stage.outcome.counted += 1;
    pause(held).await;
    set(context, &stage, broker, Mode::Pass).await?;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}

async fn set(context: &mut Context, stage: &Stage, broker: bool, mode: Mode) -> anyhow::Result<()> {
    if broker {
        context.servers.proxy_of(context.pair.broker, stage.scene.topic(true)).await?.set(mode);
    } else {
        context.servers.postgres().await?.proxy.set(mode);
    }
    Ok(())
}

/// All connections to the broker are cut again and again, by whoever is between.
pub(crate) async fn cut(context: &mut Context) -> anyhow::Result<Outcome> {
    let times: u32 = if context.args.short { 3 } else { 10 };
    let messages = context.messages(20_000, 6_000);
    let mut stage = Stage::set(context, Setup { broker_by_proxy: true, ..Setup::new(messages) }).await?;
    stage.spawn_all(2).await?;
    for _ in 0..times {
        if !stage.until_acked(u64::from(messages / (times + 1))).await? {
            break;
        }
        let is_at_work = stage.is_at_work().await?;
        let proxy = context.servers.proxy_of(context.pair.broker, stage.scene.topic(true)).await?;
        stage.outcome.counted += u64::from(proxy.cut() > 0 && is_at_work);
    }
    stage.finish(false).await
}

/// What extends leases is held back until they have ended: of a process that goes on working, and acknowledges late what
/// another one has been handed meanwhile.
pub(crate) async fn lease_out(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(10_000, 5_000);
    let mut stage = Stage::set(context, Setup { broker_by_proxy: true, ..Setup::new(messages) }).await?;
    // So slow that it is in the middle of handlers when the leases end, and has others waiting for them.
    stage.spawn(0, &["--slow-every=3".into(), "--slow-ms=500".into()]).await?;
    stage.until_acked(20).await?;
    let is_at_work = stage.is_at_work().await?;
    set(context, &stage, true, Mode::Hold).await?;
    stage.come_by_proxy(false);
    stage.spawn(1, &[]).await?;
    // The last extension may have been just before.
    pause(context.pair.broker.lease() + Duration::from_secs(2)).await;
    set(context, &stage, true, Mode::Pass).await?;
    let published = stage.load.published() as u64;
    let mut outcome = stage.finish(false).await?;
    // Nothing else hands a message out a second time here.
    outcome.counted += u64::from(is_at_work && outcome.received > published);
    Ok(outcome)
}

/// One COMMIT in eight is cut, with or without having reached the server.
pub(crate) async fn commits(context: &mut Context, forward: bool) -> anyhow::Result<Outcome> {
    let messages = context.messages(16_000, 6_000);
    let setup = Setup { store_by_proxy: true, handler_us: 300, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    stage.spawn_all(2).await?;
    stage.until_acked(u64::from(messages) / 10).await?;
    let before = context.servers.postgres().await?.proxy.cuts();
    set(context, &stage, false, Mode::CutCommits { forward, every: 8 }).await?;
    stage.until_acked(u64::from(messages) / 2).await?;
    set(context, &stage, false, Mode::Pass).await?;
    stage.outcome.counted += context.servers.postgres().await?.proxy.cuts() - before;
    stage.resumed(Instant::now()).await?;
    stage.finish(true).await
}
