//! The suite of `inbox-conformance` against a real broker: `INBOX_TEST_KAFKA=kafka://host:port`.

mod subject;

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{Suite, memory::MemoryStoreSubject};

use crate::subject::KafkaSubject;

fn main() -> ExitCode {
    let broker = Arc::new(KafkaSubject);
    let store = Arc::new(MemoryStoreSubject::default());
    Suite::new().transport(&broker).end_to_end(&broker, &store).run()
}
