//! RabbitMQ: one node, made afresh at each start.

use std::path::{Path, PathBuf};

use anyhow::Result;
use xtask::{
    process::on_path,
    servers::rabbitmq::{Node, end_epmd, scripts},
};

use super::{Service, Start, packages::Need, state::Running};

/// RabbitMQ as a service.
pub(super) const SERVICE: Service = Service {
    name: "rabbitmq",
    variable: "INBOX_TEST_RABBITMQ",
    needs: &[Need { present: || scripts().is_some() && on_path("epmd").is_some(), package: "rabbitmq-server" }],
    start,
    // The node stops its applications and then itself.
    stop: "TERM",
    clean: |folder| end_epmd(&base(folder)),
};

fn base(folder: &Path) -> PathBuf {
    folder.join("rabbitmq")
}

fn start(with: &Start<'_>) -> Result<Running> {
    let node = Node::make(&base(with.folder), with.port()?)?;
    Ok(Running {
        name: SERVICE.name.to_owned(),
        pid: node.start()?,
        port: node.port(),
        mark: node.mark(),
        url: node.url(),
    })
}
