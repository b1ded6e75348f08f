//! For the suite of `inbox-conformance`, against a real server: `INBOX_TEST_REDIS=redis://host:port`. It must be durable
//! (`appendonly yes`, `appendfsync always`), and of nobody who minds its streams `suite-…`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use inbox_conformance::{Link, TransportSubject, harness::unique};
use inbox_core::{
    BoxError, Publisher, Transport, TransportErrorKind,
    capability::{Capabilities, Lease, Ordering},
};

pub(crate) struct RedisSubject {
    lease: Duration,
}

impl RedisSubject {
    /// With short leases: what a case kills comes again soon.
    pub(crate) fn brisk() -> Arc<Self> {
        Arc::new(Self { lease: Duration::from_secs(3) })
    }

    /// With the default settings.
    #[allow(dead_code, reason = "not used by all who share this file")]
    pub(crate) fn unset() -> Arc<Self> {
        Arc::new(Self { lease: Duration::from_secs(30) })
    }
}

#[async_trait]
impl TransportSubject for RedisSubject {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "redis",
            ordering: Ordering::None,
            lease: Lease::Extended { timeout: self.lease },
            delivery_count: true,
            suspect_flag: false,
            exclusive_keys: false,
            max_body: None,
            durable: true,
        }
    }

    fn can_break_sessions(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn Link>, BoxError> {
        let server = std::env::var("INBOX_TEST_REDIS").map_err(
            |_| "INBOX_TEST_REDIS is not set: a server, `redis://host:port`; `cargo xtask services up` starts one",
        )?;
        let stream = unique("suite");
        let link = RedisLink {
            url: format!("{}?stream={stream}&lease={}ms", server.trim_end_matches('/'), self.lease.as_millis()),
            client: redis::Client::open(server)?,
            stream,
        };
        inbox_redis::provision(&link.of("own")).await?;
        MADE.lock().unwrap_or_else(PoisonError::into_inner).push((link.client.clone(), link.stream.clone()));
        Ok(Arc::new(link))
    }
}

struct RedisLink {
    /// Without a group.
    url: String,
    stream: String,
    client: redis::Client,
}

impl RedisLink {
    fn of(&self, group: &str) -> String {
        format!("{}&group={group}", self.url)
    }
}

#[async_trait]
impl Link for RedisLink {
    async fn connect(&self) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(inbox_redis::connect(&self.of("own")).await?))
    }

    async fn connect_group(&self, group: &str) -> Result<Arc<dyn Transport>, BoxError> {
        Ok(Arc::new(inbox_redis::connect(&self.of(group)).await?))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, BoxError> {
        Ok(Arc::new(inbox_redis::publisher(&self.url).await?))
    }

    /// A session ends with the group, which its consumers make again.
    async fn break_sessions(&self) -> Result<(), BoxError> {
        let mut connection = self.client.get_multiplexed_async_connection().await?;
        redis::cmd("XGROUP").arg("DESTROY").arg(&self.stream).arg("own").exec_async(&mut connection).await?;
        Ok(())
    }

    async fn backlog(&self) -> Result<u64, BoxError> {
        match inbox_redis::backlog(&self.of("own")).await {
            // Until it is made again.
            Err(error) if error.kind() == TransportErrorKind::NotFound => {
                Ok(inbox_redis::count_entries(&self.url).await?)
            }
            counted => Ok(counted?),
        }
    }
}

/// What the cases have made at the server.
static MADE: Mutex<Vec<(redis::Client, String)>> = Mutex::new(Vec::new());

/// Takes it away again: the server may be somebody's own.
pub(crate) fn clean() {
    let made = std::mem::take(&mut *MADE.lock().unwrap_or_else(PoisonError::into_inner));
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return };
    runtime.block_on(async {
        for (client, stream) in made {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                drop(redis::cmd("DEL").arg(stream).exec_async(&mut connection).await);
            }
        }
    });
}
