//! `amqps`: a proxy with a certificate of its own stands in front of the broker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_core::{TransportErrorKind, report};
use inbox_rabbitmq::{RabbitMqConfig, RabbitMqTransport};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::{
    proxy::Proxy,
    support::{Queue, ack, port, receive},
};

/// A port that speaks TLS in the broker's place, as `name`, and the authority's certificate.
struct Tls {
    port: u16,
    authority: tempfile::NamedTempFile,
    _serving: JoinSet<()>,
}

impl Tls {
    async fn start(name: &str, to: u16) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let Ok(mut here) = acceptor.accept(stream).await else { return };
                    let mut there = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut here, &mut there).await);
                });
            }
        });
        let authority = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(authority.path(), issuer.pem()).unwrap();
        Self { port, authority, _serving: serving }
    }

    /// The queue by way of this port.
    fn config(&self, queue: &Queue) -> RabbitMqConfig {
        queue.config_by(self.port).tls(true).connect_timeout(Duration::from_secs(3))
    }

    fn trusted(&self, queue: &Queue) -> RabbitMqConfig {
        self.config(queue).ca(self.authority.path().to_str().unwrap())
    }
}

async fn refused(config: RabbitMqConfig, kind: TransportErrorKind, words: &[&str]) {
    let started = Instant::now();
    let error = RabbitMqTransport::connect(config).await.expect_err("refused");
    let text = report(&error);
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_is_trusted() {
    let queue = Queue::new().await;
    queue.publish(0..100).await;
    // Behind TLS, so that it can be cut.
    let proxy = Proxy::start(port()).await.unwrap();
    let tls = Tls::start("127.0.0.1", proxy.port).await;
    let transport = RabbitMqTransport::connect(tls.trusted(&queue)).await.unwrap();
    let half = receive(&transport, 50).await;
    ack(&transport, half).await;
    let held = receive(&transport, 50).await;
    proxy.cut();
    tokio::time::timeout(Duration::from_secs(2), held[0].receipt.session().lost()).await.expect("lost at once");
    let again = receive(&transport, 50).await;
    ack(&transport, again).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_certificate_is_said() {
    let queue = Queue::new().await;
    let tls = Tls::start("127.0.0.1", port()).await;
    refused(tls.config(&queue), TransportErrorKind::Unauthorized, &["TLS handshake", "`ca`"]).await;
    let other = Tls::start("another-host", port()).await;
    refused(other.trusted(&queue), TransportErrorKind::Unauthorized, &["TLS handshake"]).await;
    let nothing = tls.config(&queue).ca("/no/such/file.pem");
    refused(nothing, TransportErrorKind::InvalidConfig, &["`ca`", "cannot be read"]).await;
    queue.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_side_speaks_tls_and_the_other_does_not() {
    let queue = Queue::new().await;
    let tls = Tls::start("127.0.0.1", port()).await;
    let address = format!("127.0.0.1:{}", tls.port);
    refused(tls.config(&queue).tls(false), TransportErrorKind::InvalidConfig, &[&address, "`amqps:`"]).await;
    let plain = queue.config().tls(true).connect_timeout(Duration::from_secs(2));
    refused(plain, TransportErrorKind::Unauthorized, &["TLS", "the port for TLS"]).await;
    queue.delete().await;
}
