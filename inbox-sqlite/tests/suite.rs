//! The suite of `inbox-conformance` on the queue and the store in files.

#![allow(clippy::expect_used, reason = "a test program without a temporary folder can only say so")]

mod subject;

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::Suite;

use crate::subject::{FileSubject, QueueSubject};

fn main() -> ExitCode {
    let dir = || tempfile::tempdir().expect("a temporary folder");
    let queue = Arc::new(QueueSubject { dir: dir() });
    let store = Arc::new(FileSubject { dir: dir() });
    Suite::new().transport(&queue).store(&store).end_to_end(&queue, &store).run()
}
