//! Connections: one for everything that is answered at once, and one for each reader, which waits at the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_core::{TransportError, TransportErrorKind, report};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    TlsCertificates, aio::MultiplexedConnection,
};
use tokio::time::{Instant, sleep};
use tokio_rustls::rustls::crypto;

use crate::{config::RedisConfig, error};

/// Between two attempts of a `connect` that waits for a server.
const PAUSE: Duration = Duration::from_millis(250);

/// A server and a stream.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) config: Arc<RedisConfig>,
    pub(crate) stream: Arc<str>,
    client: Client,
    shared: Arc<tokio::sync::Mutex<Option<MultiplexedConnection>>>,
    /// Whether the connection that is shared is of no use any more.
    broken: Arc<AtomicBool>,
}

impl Remote {
    /// Connects; waits for a server that is not there yet, until the connect timeout at most.
    pub(crate) async fn connect(config: RedisConfig, operation: &'static str) -> Result<Self, TransportError> {
        config.check()?;
        let deadline = Instant::now() + config.connect_timeout;
        let remote = Self {
            stream: config.required_stream()?.into(),
            client: client(&config, operation).await?,
            config: Arc::new(config),
            shared: Arc::default(),
            broken: Arc::default(),
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, remote.connection()).await {
                Ok(Ok(_)) => return Ok(remote),
                Ok(Err(error)) => {
                    let error = remote.refused(operation, error);
                    if !error.is_retryable() || Instant::now() + PAUSE >= deadline {
                        return Err(error);
                    }
                    sleep(PAUSE).await;
                }
                Err(_) => return Err(remote.silent(operation)),
            }
        }
    }

    /// The connection that is shared, a new one when the old one is broken.
    pub(crate) async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut slot = self.shared.lock().await;
        if self.broken.swap(false, Ordering::AcqRel) {
            *slot = None;
        }
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let connection = self.open(self.config.request_timeout).await?;
        *slot = Some(connection.clone());
        Ok(connection)
    }

    /// A connection of its own, for requests that take `longest` at most.
    pub(crate) async fn open(&self, longest: Duration) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.config.connect_timeout))
            .set_response_timeout(Some(longest));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Looks at what came over the shared connection: one that broke is replaced by the next request.
    pub(crate) fn noted<T>(&self, answer: Result<T, RedisError>) -> Result<T, RedisError> {
        if answer.as_ref().is_err_and(error::ends_connection) {
            self.give_up();
        }
        answer
    }

    /// The shared connection is of no use: the next request gets another one.
    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// An error of ours that says which setting it is about.
    pub(crate) fn refused(&self, operation: &'static str, error: RedisError) -> TransportError {
        let (address, stream) = (self.config.address(), self.stream.escape_debug());
        let user = self.config.user.as_deref().unwrap_or("default").escape_debug();
        let context = match error::kind_of(&error) {
            TransportErrorKind::Unauthorized if error.is_io_error() => format!(
                "the TLS handshake with {address} failed: is this the port for TLS, and who has signed the server's \
                 certificate (`ca`)"
            ),
            TransportErrorKind::Unauthorized if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                format!("{address} refused the user `{user}` or the password")
            }
            TransportErrorKind::Unauthorized => {
                format!("the user `{user}` may not use the stream `{stream}` so, or has to give a password")
            }
            TransportErrorKind::NotFound => {
                format!("the stream `{stream}` or the group does not exist; `inbox::provision(url)` creates both")
            }
            TransportErrorKind::InvalidConfig => format!("the stream `{stream}` at {address}"),
            _ if error.is_timeout() && self.config.tls => {
                format!("{address} did not answer in time: is this the port for TLS")
            }
            _ if error.is_timeout() => format!("{address} did not answer in time"),
            _ if error.is_io_error() => format!("no Redis at {address}"),
            _ => format!("the stream `{stream}` at {address}"),
        };
        error::of(operation, error).context(context)
    }

    fn silent(&self, operation: &'static str) -> TransportError {
        TransportError::new(TransportErrorKind::Unavailable, operation).context(format!(
            "{} did not answer within `connect_timeout`, {:?}",
            self.config.address(),
            self.config.connect_timeout
        ))
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client holds the password.
        f.debug_struct("Remote").field("config", &self.config).finish_non_exhaustive()
    }
}

async fn client(config: &RedisConfig, operation: &'static str) -> Result<Client, TransportError> {
    let invalid = |error: RedisError| error::of(operation, error);
    let (host, port) = config.host_and_port()?;
    let host = host.to_owned();
    let address = if config.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut login =
        RedisConnectionInfo::default().set_db(config.database).set_lib_name("inbox-redis", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    if let Some(password) = &config.password {
        login = login.set_password(password.expose());
    }
    let info = address.into_connection_info().map_err(invalid)?.set_redis_settings(login);
    if !config.tls {
        return Client::open(info).map_err(invalid);
    }
    if crypto::CryptoProvider::get_default().is_none() {
        // The client takes the process's, of which there is none by itself once two are compiled in. An error says that
        // somebody else was quicker.
        drop(crypto::ring::default_provider().install_default());
    }
    let root_cert = match &config.ca {
        None => None,
        Some(file) => Some(read(file.clone(), operation).await?),
    };
    Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert }).map_err(|error| {
        TransportError::new(TransportErrorKind::InvalidConfig, operation)
            .context("the file that `ca` names holds no certificates that can be used")
            .source(error)
    })
}

async fn read(file: String, operation: &'static str) -> Result<Vec<u8>, TransportError> {
    let invalid = || TransportError::new(TransportErrorKind::InvalidConfig, operation);
    match tokio::task::spawn_blocking(move || std::fs::read(file)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(invalid().context("the file that `ca` names cannot be read").source(error)),
        Err(error) => Err(invalid().source(error)),
    }
}

/// The words of an error without what is said of every error: its kind and operation.
pub(crate) fn said(error: &TransportError) -> String {
    let words = report(error);
    words.split_once("): ").map_or(words.clone(), |(_, said)| said.to_owned())
}
