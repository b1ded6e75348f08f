//! What the database and the broker say at the end, and whether it is right.

use crate::{args::Role, pipeline::Crashes, roles::Run};

/// What a run proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Holds,
    Broken,
    ProvesNothing,
}

/// Prints the report as `label: value` lines and judges it.
pub(crate) async fn verify(run: &Run, payments: i64, crashes: &Crashes) -> anyhow::Result<Verdict> {
    let books = run.shop.books().await?;
    let published = i64::try_from(run.broker.published().await?)?;
    let duplicates = published - payments * 2;
    let mut broken = Vec::new();
    let mut expect = |holds: bool, what: String| {
        if !holds {
            broken.push(what);
        }
    };
    println!("payments captured: {}", books.captured);
    expect(books.captured == payments, format!("{payments} payments were made"));
    println!("outbox events: {} ({} unpublished)", books.events, books.unpublished);
    expect(books.events == payments * 2 && books.unpublished == 0, "every event is published".into());
    println!("messages on the topic: {published} ({duplicates} duplicates)");
    expect(duplicates >= 0, "every event is on the topic".into());
    for role in Role::ALL.into_iter().filter(|role| role.is_consumer()) {
        let name = run.consumer(role);
        let claims = i64::try_from(run.shop.claims(&name).await?)?;
        if run.no_inbox {
            println!("events processed once: not known, {} does not claim", role.name());
            continue;
        }
        println!("events processed once: {claims} ({})", role.name());
        expect(claims == payments * 2, format!("{} has claimed each event once", role.name()));
        let quarantined = run.shop.quarantined(&name).await?;
        expect(quarantined == 0, format!("{} has quarantined nothing, but {quarantined} are", role.name()));
    }
    println!("receipts sent: {} for {} payments", books.receipts, books.receipted);
    expect(
        books.receipts == payments && books.receipted == payments,
        format!("each of {payments} payments has one receipt, but there are {}", books.receipts),
    );
    println!("projection shows captured: {}", books.projected);
    expect(books.projected == payments, "the projection shows every payment as captured".into());
    println!("authorized after captured: {}", books.late);
    for role in Role::ALL {
        println!("crashes of {}: {}", role.name(), crashes.get(&role).copied().unwrap_or_default());
    }
    let crashed: u64 = crashes.values().sum();
    if !broken.is_empty() {
        for what in &broken {
            println!("broken: {what}");
        }
        println!("verdict: an invariant is broken");
        return Ok(Verdict::Broken);
    }
    if crashed == 0 || duplicates == 0 {
        println!("verdict: nothing is proven, {crashed} crashes and {duplicates} duplicates; use more --payments");
        return Ok(Verdict::ProvesNothing);
    }
    println!("verdict: every effect is there once");
    Ok(Verdict::Holds)
}
