//! One AMQP connection, with a hand on its socket: lapin gives none, and a broker that is silent would keep its thread and
//! its socket for ever.

use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inbox_core::{TransportError, TransportErrorKind};
use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties,
    tcp::OwnedTLSConfig,
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use tokio::time::Instant;

use crate::{config::RabbitMqConfig, error};

/// Between two attempts of a `connect` that waits for a broker.
const PAUSE: Duration = Duration::from_millis(250);

/// How long a broker may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(10);

/// A connection that was opened. Dropping it closes it in the background.
pub(crate) struct Connected {
    pub(crate) amqp: Connection,
    socket: Socket,
}

impl Connected {
    /// Whether it can be used, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.amqp.status().connected() && !self.socket.is_cut()
    }

    /// Ends it as a broken network would: whatever waits for an answer on it fails at once.
    pub(crate) fn cut(&self) {
        self.socket.cut();
    }

    /// Says goodbye, so that the broker gives everything back at once. One that does not answer is left without.
    pub(crate) async fn close(&self) {
        let goodbye = self.amqp.close(200, "OK".into());
        // An error says that it is closed already.
        if tokio::time::timeout(GOODBYE, goodbye).await.is_err() {
            self.cut();
        }
    }
}

/// A second handle of the socket that a connection uses.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<Option<TcpStream>>>);

impl Socket {
    fn keep(&self, stream: &impl AsFd) -> io::Result<()> {
        let stream = TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        // An acknowledgement is small, and must not wait for the next one.
        stream.set_nodelay(true)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        Ok(())
    }

    fn is_cut(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn cut(&self) {
        if let Some(stream) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // An error says that it is closed already.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// Cuts the socket of a connection that is given up while it is being opened.
struct CutOnDrop(Option<Socket>);

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.cut();
        }
    }
}

/// The broker is there and has not answered a question before its deadline.
pub(crate) fn silent(config: &RabbitMqConfig, operation: &'static str) -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, operation)
        .context(format!("the broker did not answer within `connect_timeout`, {:?}", config.connect_timeout))
}

/// Opens a connection; waits for a broker that is not there yet, until `deadline` at most.
pub(crate) async fn open(
    config: &RabbitMqConfig,
    operation: &'static str,
    deadline: Instant,
) -> Result<Connected, TransportError> {
    loop {
        match attempt(config, operation, deadline).await {
            Err(error) if error.is_retryable() && Instant::now() + PAUSE < deadline => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// Tries each node once.
pub(crate) async fn attempt(
    config: &RabbitMqConfig,
    operation: &'static str,
    deadline: Instant,
) -> Result<Connected, TransportError> {
    let mut nodes = config.addresses()?;
    // Consumers of one cluster spread over its nodes.
    fastrand::shuffle(&mut nodes);
    let authorities = authorities(config, operation).await?;
    let mut failed = None;
    let mut left = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    for (host, port) in nodes {
        // One that says nothing leaves the others their time.
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        left -= 1;
        match dial(config, operation, (&host, port), authorities.clone(), Instant::now() + share).await {
            Err(error) if error.is_retryable() => failed = Some(error),
            done => return done,
        }
    }
    Err(failed.unwrap_or_else(|| TransportError::new(TransportErrorKind::InvalidConfig, operation)))
}

async fn authorities(config: &RabbitMqConfig, operation: &'static str) -> Result<Option<String>, TransportError> {
    let Some(file) = config.ca.clone() else { return Ok(None) };
    let invalid = || TransportError::new(TransportErrorKind::InvalidConfig, operation);
    match tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await {
        Ok(Ok(text)) => Ok(Some(text)),
        Ok(Err(error)) => Err(invalid().context("the file that `ca` names cannot be read").source(error)),
        Err(error) => Err(invalid().source(error)),
    }
}

async fn dial(
    config: &RabbitMqConfig,
    operation: &'static str,
    node: (&str, u16),
    authorities: Option<String>,
    deadline: Instant,
) -> Result<Connected, TransportError> {
    let runtime = lapin::runtime::default_runtime().map_err(|error| error::of(operation, error))?;
    let socket = Socket::default();
    let mut guard = CutOnDrop(Some(socket.clone()));
    let tls = config.tls.then_some(OwnedTLSConfig { identity: None, cert_chain: authorities });
    let (hand, host, port) = (socket.clone(), node.0.to_owned(), node.1);
    let opening = Connection::connector(
        uri(config, node),
        runtime,
        async move |_, runtime| {
            let found: Vec<_> = tokio::net::lookup_host((host.as_str(), port)).await?.collect();
            let stream = AsyncTcpStream::connect(&runtime, found).await?;
            if let AsyncTcpStream::Plain(stream) = &stream {
                hand.keep(stream.get_ref())?;
            }
            match &tls {
                Some(tls) => Ok(stream.into_tls(&host, tls.as_ref()).await?),
                None => Ok(stream),
            }
        },
        properties(config),
    );
    match tokio::time::timeout_at(deadline, opening).await {
        Ok(Ok(amqp)) => {
            guard.0 = None;
            Ok(Connected { amqp, socket })
        }
        Ok(Err(error)) => {
            let context = refusal(config, node, &error);
            Err(error::of(operation, error).context(context))
        }
        Err(_) => Err(TransportError::new(TransportErrorKind::Unavailable, operation).context(format!(
            "no answer from {}:{} within its share of `connect_timeout`, {:?}",
            node.0, node.1, config.connect_timeout
        ))),
    }
}

/// Never kept and never shown: it holds the password.
fn uri(config: &RabbitMqConfig, (host, port): (&str, u16)) -> AMQPUri {
    AMQPUri {
        scheme: if config.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username: config.user.clone(), password: config.password.expose().clone() },
            host: host.to_owned(),
            port,
        },
        vhost: config.vhost.clone(),
        query: AMQPQueryString { heartbeat: Some(config.heartbeat_seconds()), ..AMQPQueryString::default() },
    }
}

/// What the broker shows of the connection.
fn properties(config: &RabbitMqConfig) -> ConnectionProperties {
    let name = config.queue.as_deref().or(config.exchange.as_deref()).unwrap_or_default();
    ConnectionProperties::default()
        .with_connection_name(format!("inbox {name}").into())
        .with_client_property("product".into(), "inbox-rabbitmq".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
}

/// Which setting a refused connection is about.
fn refusal(config: &RabbitMqConfig, (host, port): (&str, u16), error: &lapin::Error) -> String {
    let (user, vhost) = (config.user.escape_debug(), config.vhost.escape_debug());
    match (error::code_of(error), error::kind_of(error)) {
        (Some(error::NOT_ALLOWED), _) => format!(
            "the virtual host `{vhost}`, which is the URL's path, does not exist, or the user `{user}` may not use it"
        ),
        (Some(_), TransportErrorKind::Unauthorized) => {
            format!("{host}:{port} refused the user `{user}` or the password")
        }
        (None, TransportErrorKind::InvalidConfig) => format!(
            "what answers at {host}:{port} is no AMQP broker: does it expect TLS (`amqps:`), or is it another port"
        ),
        (None, TransportErrorKind::Unauthorized) => format!(
            "the TLS handshake with {host}:{port} failed: is this the port for TLS, and who has signed the broker's \
             certificate (`ca`)"
        ),
        (None, _) => format!("no broker at {host}:{port}"),
        (Some(_), _) => format!("{host}:{port} closed the connection"),
    }
}
