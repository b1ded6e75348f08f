//! Processes that are asked to stop.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::{
    fleet::End,
    outcome::Outcome,
    servers::pause,
    stage::{Context, Setup, Stage},
};

/// Everybody is stopped under load and started again.
pub(crate) async fn graceful(context: &mut Context) -> anyhow::Result<Outcome> {
    let stops: u32 = if context.args.short { 4 } else { 20 };
    // More than all stops together let through: each works off what is in flight.
    let messages = context.args.messages.unwrap_or(2_000 * stops);
    // A lease that a busy machine does not miss: what comes again here has to be a stop's doing.
    let setup = Setup { static_members: true, lease_seconds: 60, handler_us: 300, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    for _ in 0..stops {
        stage.spawn_all(2).await?;
        if !stage.until_acked(context.rng.u64(1..400)).await? {
            break;
        }
        // At once, or the second would get what the first one had.
        for place in 0..2 {
            stage.consumer(place)?.signal(Signal::SIGTERM)?;
        }
        for place in 0..2 {
            stage.stop(place).await?;
        }
        stage.outcome.counted += 1;
    }
    if stage.is_empty() {
        stage.spawn_all(2).await?;
    }
    let published = stage.load.published() as u64;
    let mut outcome = stage.finish(true).await?;
    let (calls, received, messages) = (outcome.calls, outcome.received, outcome.messages);
    outcome.expect(calls == messages, || format!("{calls} handlers ran for {messages} messages"));
    outcome.expect(received == published, || format!("{received} deliveries of {published} messages"));
    Ok(outcome)
}

/// One handler never ends; its process is asked to stop, and another one takes the message.
pub(crate) async fn stuck(context: &mut Context) -> anyhow::Result<Outcome> {
    const DEADLINE: u64 = 2;
    let messages = context.messages(4_000, 1_600);
    let setup = Setup { shutdown_seconds: DEADLINE, static_members: true, handler_us: 200, ..Setup::new(messages) };
    let mut stage = Stage::set(context, setup).await?;
    let payment = context.rng.u32(messages / 4..messages / 2);
    stage.spawn(0, &[format!("--stuck={payment}")]).await?;
    let begun = Instant::now();
    while !stage.consumer(0)?.said.stuck.load(Ordering::SeqCst) {
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(60), "payment {payment} did not come");
        pause(Duration::from_millis(5)).await;
    }
    stage.outcome.counted += 1;
    let asked = Instant::now();
    stage.consumer(0)?.signal(Signal::SIGTERM)?;
    let end = stage.ended(0, Duration::from_secs(60)).await?;
    let took = asked.elapsed();
    stage.outcome.expect(end == End::Stopped, || "the process did not stop by itself".into());
    // The deadline, what the runtime takes for closing, and what a busy machine adds.
    let most = Duration::from_secs(DEADLINE + 10);
    stage.outcome.expect(took <= most, || format!("it took {took:?} to stop, with a deadline of {DEADLINE} s"));
    stage.spawn_all(2).await?;
    stage.finish(true).await
}
