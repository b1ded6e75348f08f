//! The suite of `inbox-conformance` over a standard and a FIFO queue of moto, `INBOX_TEST_SQS=sqs://host:port`, as
//! `cargo xtask services up` starts it, and over a FIFO queue of a service of these tests, which can end a lease.

mod subject;

use std::{process::ExitCode, sync::Arc, time::Duration};

use inbox_conformance::{Suite, memory::MemoryStoreSubject};

use crate::subject::SqsSubject;

fn main() -> ExitCode {
    let standard = SqsSubject::standard();
    let fifo = SqsSubject::fifo();
    let own = SqsSubject::own_service();
    let store = Arc::new(MemoryStoreSubject::default());
    let done = Suite::new()
        .deadline(Duration::from_secs(90))
        .transport(&standard)
        .end_to_end(&standard, &store)
        .transport(&fifo)
        .end_to_end(&fifo, &store)
        .transport(&own)
        .end_to_end(&own, &store)
        .run();
    subject::clean();
    done
}
