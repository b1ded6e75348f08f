//! Redis: one server, made afresh at each start.

use anyhow::Result;
use xtask::servers::redis::{Node, program};

use super::{Service, Start, packages::Need, state::Running};

/// Redis as a service.
pub(super) const SERVICE: Service = Service {
    name: "redis",
    variable: "INBOX_TEST_REDIS",
    needs: &[Need { present: || program().is_some(), package: "redis-server" }],
    start,
    stop: "TERM",
    clean: |_| Ok(()),
};

fn start(with: &Start<'_>) -> Result<Running> {
    let node = Node::make(&with.folder.join("redis"), with.port()?)?;
    Ok(Running {
        name: SERVICE.name.to_owned(),
        pid: node.start()?,
        port: node.port(),
        mark: node.mark(),
        url: node.url(),
    })
}
