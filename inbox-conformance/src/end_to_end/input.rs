//! Messages that are unusual or wrong.

use std::sync::{Arc, Mutex, atomic::Ordering};

use inbox_core::{Bytes, Inbox, InboxBuilder, Policy, Publisher, TransportErrorKind, failure_store::Reason};
use serde::Deserialize;
use uuid::Uuid;

use super::scene::{Act, Running, Scene, good, handler, label, message, nameless, script};
use crate::{
    ensure, ensure_eq,
    faults::LostAcks,
    harness::{CaseResult, FullStoreSubject, until},
};

/// Runs an inbox until the broker has nothing left; how many messages it ignored.
async fn run_out<S: FullStoreSubject>(
    scene: &Scene<S>,
    inbox: InboxBuilder<Arc<S::Store>>,
) -> Result<u64, inbox_core::BoxError> {
    let running = Running::start(inbox)?;
    scene.no_backlog().await?;
    let ignored = running.handle.numbers().ignored;
    running.stop().await?;
    Ok(ignored)
}

pub(super) async fn e34_a_message_without_a_usable_id_is_kept<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let with_id = |label: &str, id: &'static [u8]| nameless(label).id(id);
    let wrong = || {
        vec![
            nameless("absent"),
            with_id("empty", b""),
            with_id("blank", b" \t"),
            with_id("nil", b"00000000-0000-0000-0000-000000000000"),
            with_id("max", b"FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"),
            nameless("absent"),
        ]
    };
    let mut published = wrong();
    published.push(message("good"));
    scene.publish(published).await?;
    // Each comes twice, the second time because its ack was lost.
    let transport = LostAcks::new(scene.link.connect().await?);
    let lost = Arc::clone(&transport.lost);
    let running = Running::start(scene.inbox(Arc::new(transport), Arc::clone(&scene.store), good()))?;
    until("7 commits without an ack", || async { Ok(lost.load(Ordering::SeqCst) >= 7) }).await?;
    drop(running);
    let mut kept =
        ["absent", "absent", "blank", "empty", "max", "nil"].map(|label| (label, Reason::MissingId)).to_vec();
    if scene.failures().await?.iter().any(|row| row.source.coordinates.is_none()) {
        // Nothing tells equal ones apart where the broker gives them no coordinates: one row counts them.
        kept.remove(0);
    }
    scene.failures_are(&kept).await?;
    scene.finish().await?;
    scene.each_once(&["good"]).await?;
    ensure_eq!(scene.journal.calls(), ["good"], "handler calls");
    scene.failures_are(&kept).await?;
    scene.publish(wrong()).await?;
    let ignored = run_out(&scene, scene.connected(good()).await?.on_missing_id(Policy::Ignore)).await?;
    ensure_eq!(ignored, 6, "messages without an id that were ignored by policy");
    scene.failures_are(&kept).await
}

pub(super) async fn e35_any_text_is_an_id<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let uuid = Uuid::now_v7();
    let mut published = Vec::new();
    for (label, id) in [
        ("long", vec![b'x'; 10_240]),
        ("longer", vec![b'x'; 10_241]),
        ("emoji", "\u{1f980} and \0 NUL".into()),
        ("bytes", vec![0xff, 0xfe, 0x00, 0x01]),
        ("one", b"1".to_vec()),
        ("quotes", b"'; DROP TABLE claims; --".to_vec()),
        ("uuid", uuid.to_string().into_bytes()),
    ] {
        published.push(nameless(label).id(id));
    }
    // Another spelling of the same UUID.
    published.push(nameless("uuid").id(uuid.simple().to_string().to_uppercase()));
    scene.publish(published.clone()).await?;
    scene.finish().await?;
    scene.publish(published).await?;
    scene.finish().await?;
    scene.each_once(&["long", "longer", "emoji", "bytes", "one", "quotes", "uuid"]).await?;
    scene.failures_are(&[]).await
}

#[derive(Deserialize)]
struct Decoded {
    label: String,
}

pub(super) async fn e36_an_undecodable_message_is_kept<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let bodies = ["not JSON", "", "{\"label\": 3}", "{\"label\": \"cut"];
    let undecodable = || bodies.map(|body| message("k").with_body(Bytes::from(body)));
    let mut published = undecodable().to_vec();
    published.insert(2, message("k").with_body(Bytes::from("{\"label\": \"good\", \"more\": 1}")));
    scene.publish(published).await?;
    let inbox = async || {
        let transport = scene.link.connect().await?;
        let inbox = Inbox::new(scene.name.clone(), transport, Arc::clone(&scene.store));
        let actor = scene.actor(good());
        let decodes = handler(move |event: Decoded, tx| {
            let actor = Arc::clone(&actor);
            Box::pin(async move { actor.apply(&event.label, tx).await })
        });
        Ok::<_, inbox_core::BoxError>(inbox.on("conformance.case", decodes))
    };
    run_out(&scene, inbox().await?).await?;
    scene.each_once(&["good"]).await?;
    let kept = bodies.map(|body| (body, Reason::Undecodable));
    scene.failures_are(&kept).await?;
    let attempts: Vec<u32> = scene.failures().await?.iter().map(|row| row.attempts).collect();
    ensure_eq!(attempts, vec![0; 4], "attempts of messages that no handler saw");
    scene.publish(undecodable().to_vec()).await?;
    let ignored = run_out(&scene, inbox().await?.on_undecodable(Policy::Ignore)).await?;
    ensure_eq!(ignored, 4, "undecodable messages that were ignored by policy");
    scene.failures_are(&kept).await
}

pub(super) async fn e37_an_unrouted_message_is_kept<S: FullStoreSubject>(scene: Scene<S>) -> CaseResult {
    let kinds = || {
        let mut kindless = message("none");
        kindless.kind = None;
        vec![
            message("known").kind("known"),
            message("unknown").kind("unknown"),
            kindless,
            message("ignored").kind("ignored"),
        ]
    };
    scene.publish(kinds()).await?;
    let inbox = async || {
        let transport = scene.link.connect().await?;
        let inbox = Inbox::new(scene.name.clone(), transport, Arc::clone(&scene.store));
        Ok::<_, inbox_core::BoxError>(inbox.on("known", scene.handler(good())).ignore("ignored"))
    };
    let ignored = run_out(&scene, inbox().await?).await?;
    ensure_eq!(ignored, 1, "messages of the ignored kind");
    scene.each_once(&["known"]).await?;
    let kept = [("unknown", Reason::Unrouted), ("none", Reason::Unrouted)];
    scene.failures_are(&kept).await?;
    scene.publish(kinds()).await?;
    let ignored = run_out(&scene, inbox().await?.on_unrouted(Policy::Ignore)).await?;
    ensure_eq!(ignored, 3, "messages that were ignored, by kind and by policy");
    scene.each_once(&["known", "known"]).await?;
    scene.failures_are(&kept).await
}

/// A body as large as the broker takes, 5 MB at most.
async fn publish_large(publisher: &dyn Publisher, byte: u8) -> Result<Bytes, inbox_core::BoxError> {
    for size in [5_000_000, 900_000, 200_000] {
        let body = Bytes::from(vec![byte; size]);
        let large = message("large").with_body(body.clone());
        match publisher.publish(vec![large]).await.pop().ok_or("no answer")? {
            Ok(()) => return Ok(body),
            Err(error) if error.kind() == TransportErrorKind::TooLarge => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err("a body of 200 kB is too large".into())
}

pub(super) async fn e38_bodies_and_headers_of_any_size_reach_the_handler<S: FullStoreSubject>(
    scene: Scene<S>,
) -> CaseResult {
    let publisher = scene.link.publisher().await?;
    let bytes: Vec<u8> = (0..=255).collect();
    let (large, zeros) = (publish_large(&*publisher, b'x').await?, publish_large(&*publisher, 0).await?);
    let empty = message("empty").with_body(Bytes::new());
    let headers = message("headers").header("binary", bytes.clone()).header("empty", "").header("n", "1");
    scene.publish(vec![empty, headers]).await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let sees = script(move |call| {
        notes.lock().unwrap().push(call.message.clone());
        Act::Succeed
    });
    // One message larger than the bound is still taken.
    run_out(&scene, scene.connected(sees).await?.in_flight_bytes(1_000)).await?;
    scene.each_once(&[&label(&large), &label(&zeros), "", "headers"]).await?;
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    for body in [&large, &zeros, &Bytes::new()] {
        ensure!(seen.iter().any(|message| message.body.0 == *body), "a body of {} bytes was changed", body.len());
    }
    let with_headers = seen.iter().find(|message| message.body.0 == "headers").ok_or("no message with headers")?;
    let header = |name: &str| with_headers.headers.get(name).map(|value| value.to_vec());
    ensure_eq!(
        (header("binary"), header("empty"), header("n")),
        (Some(bytes), Some(Vec::new()), Some(b"1".to_vec())),
        "the headers that the handler saw"
    );
    Ok(())
}
