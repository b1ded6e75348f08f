//! The stand-in as a process, for machines without Google's emulator: `pubsub-standin PORT`. It says so once it serves.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    dead_code,
    reason = "a server for tests; its scripted refusals are for those of this crate alone"
)]

#[path = "../tests/standin/mod.rs"]
mod standin;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let port = port.ok_or_else(|| std::io::Error::other("a port is missing: pubsub-standin PORT"))?;
    let standin = standin::StandIn::start(port).await?;
    println!("serving on {}", standin.address);
    std::future::pending().await
}
