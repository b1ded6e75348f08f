//! The suite of `inbox-conformance` against a real broker, over a classic and over a quorum queue:
//! `INBOX_TEST_RABBITMQ=rabbitmq://user:password@host:port`.

mod subject;

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{Suite, memory::MemoryStoreSubject};

use crate::subject::RabbitMqSubject;

fn main() -> ExitCode {
    let classic = RabbitMqSubject::classic();
    let quorum = RabbitMqSubject::quorum();
    let store = Arc::new(MemoryStoreSubject::default());
    let done = Suite::new()
        .transport(&classic)
        .end_to_end(&classic, &store)
        .transport(&quorum)
        .end_to_end(&quorum, &store)
        .run();
    subject::clean();
    done
}
