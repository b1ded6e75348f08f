//! The suite of `inbox-conformance` against a real server: `INBOX_TEST_REDIS=redis://host:port`.

mod subject;

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{Suite, memory::MemoryStoreSubject};

use crate::subject::RedisSubject;

fn main() -> ExitCode {
    let redis = RedisSubject::brisk();
    let store = Arc::new(MemoryStoreSubject::default());
    let done = Suite::new().transport(&redis).end_to_end(&redis, &store).run();
    subject::clean();
    done
}
