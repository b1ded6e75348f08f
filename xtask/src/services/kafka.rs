//! Apache Kafka: one node, made afresh at each start.

use anyhow::Result;
use xtask::{
    process::on_path,
    servers::kafka::{Node, java},
};

use super::{Service, Start, packages::Need, state::Running};

/// Kafka as a service.
pub(super) const SERVICE: Service = Service {
    name: "kafka",
    variable: "INBOX_TEST_KAFKA",
    needs: &[
        Need { present: || java().is_some(), package: "openjdk-17-jre-headless" },
        Need { present: || on_path("mvn").is_some(), package: "maven" },
    ],
    start,
    stop: "TERM",
    clean: |_| Ok(()),
};

fn start(with: &Start<'_>) -> Result<Running> {
    let port = with.port()?;
    let node = Node::make(with.folder, &with.folder.join("kafka"), port, None)?;
    Ok(Running {
        name: SERVICE.name.to_owned(),
        pid: node.start()?,
        port,
        mark: node.mark(),
        url: format!("kafka://127.0.0.1:{port}"),
    })
}
