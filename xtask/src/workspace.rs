//! Where things are.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The folder of the workspace: this crate's parent.
pub(crate) fn root() -> PathBuf {
    // What cargo says at run time, so that a moved checkout still works; what it said at build time otherwise.
    let own =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map_or_else(|| own.clone(), Path::to_path_buf)
}

/// `cargo` in the workspace's folder, without what the outer `cargo run` says of this crate.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
}
