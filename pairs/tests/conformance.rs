//! The end-to-end cases over every broker with every database, on the servers that the `INBOX_TEST_…` variables name.

use std::process::ExitCode;

fn main() -> std::io::Result<ExitCode> {
    let done = inbox_pairs::suite()?.run();
    inbox_pairs::clean();
    Ok(done)
}
