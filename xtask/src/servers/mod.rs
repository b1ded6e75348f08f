//! Real servers as plain processes on 127.0.0.1: made in a folder, started, stopped, started again on the same data.

pub mod kafka;
pub mod postgres;
pub mod rabbitmq;
pub mod redis;

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};

/// How long a server may take to come up or go down.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A port that nobody uses now.
///
/// # Errors
/// When the machine has none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// Whether somebody accepts connections on a port of 127.0.0.1.
#[must_use]
pub fn serves(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// An empty folder of this name.
///
/// # Errors
/// When the file system says no.
pub fn emptied(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty {}", folder.display()))
        }
        _ => fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display())),
    }
}
