//! The suite of `inbox-conformance` against the emulator: `INBOX_TEST_PUBSUB=pubsub://project?endpoint=http://host:port`.
//!
//! Twice: over a subscription that keeps keys in order, and over one that confirms acknowledgements. Not over one that does
//! both: the emulator then takes all messages without a key for those of one key, over all consumers, and refuses to
//! acknowledge any before the earlier ones. This crate's own tests have such a subscription, with keys.

mod subject;

use std::{process::ExitCode, sync::Arc, time::Duration};

use inbox_conformance::{Suite, memory::MemoryStoreSubject};

use crate::subject::PubsubSubject;

fn main() -> ExitCode {
    let ordered = PubsubSubject::ordered();
    let confirmed = PubsubSubject::exactly_once();
    let store = Arc::new(MemoryStoreSubject::default());
    Suite::new()
        .deadline(Duration::from_secs(90))
        .transport(&ordered)
        .end_to_end(&ordered, &store)
        .transport(&confirmed)
        .end_to_end(&confirmed, &store)
        .run()
}
