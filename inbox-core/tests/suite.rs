//! The in-memory transport and store run the whole suite, as every adapter does.

use std::{process::ExitCode, sync::Arc};

use inbox_conformance::{
    Suite,
    memory::{MemoryBrokerSubject, MemoryStoreSubject},
};

fn main() -> ExitCode {
    let broker = Arc::new(MemoryBrokerSubject::default());
    let store = Arc::new(MemoryStoreSubject::default());
    Suite::new().transport(&broker).store(&store).end_to_end(&broker, &store).run()
}
