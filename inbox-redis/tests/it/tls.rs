//! `rediss`: a port with a certificate of its own stands in front of the server.

use std::{sync::Arc, time::Duration};

use inbox_core::{Transport, TransportErrorKind, report};
use inbox_redis::RedisConfig;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::support::{PATIENCE, Stream, address, drain};

/// A port that speaks TLS in the server's place, as `name`, and the authority's certificate.
struct Tls {
    port: u16,
    authority: tempfile::NamedTempFile,
    _serving: JoinSet<()>,
}

impl Tls {
    async fn start(name: &str) -> Self {
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
                    let mut there = TcpStream::connect(address()).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut here, &mut there).await);
                });
            }
        });
        let authority = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(authority.path(), issuer.pem()).unwrap();
        Self { port, authority, _serving: serving }
    }

    fn config(&self, stream: &Stream) -> RedisConfig {
        RedisConfig::new(format!("localhost:{}", self.port)).tls(true).stream(&*stream.name).group("it")
    }
}

async fn refused(config: RedisConfig, kind: TransportErrorKind, word: &str) {
    let error = inbox_redis::RedisTransport::connect(config).await.expect_err("refused");
    let text = report(&error);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(word), "{text}");
}

#[tokio::test]
async fn a_server_behind_tls() {
    let stream = Stream::new("").await;
    stream.publish(0..5).await;
    let (right, wrong) = (Tls::start("localhost").await, Tls::start("elsewhere").await);
    let trusted = |tls: &Tls| tls.config(&stream).ca(tls.authority.path().to_str().unwrap());
    let transport = inbox_redis::RedisTransport::connect(trusted(&right)).await.unwrap();
    drain(&transport, 0..5).await;
    transport.close(PATIENCE).await.unwrap();

    refused(trusted(&wrong), TransportErrorKind::Unauthorized, "TLS handshake").await;
    refused(right.config(&stream), TransportErrorKind::Unauthorized, "`ca`").await;
    refused(right.config(&stream).ca("no-such-file"), TransportErrorKind::InvalidConfig, "`ca`").await;
    let plain = RedisConfig::new(address()).tls(true).stream(&*stream.name).group("it");
    // Such a server waits for the end of a line that never comes.
    let plain = plain.connect_timeout(Duration::from_secs(1));
    refused(plain, TransportErrorKind::Unavailable, "is this the port for TLS").await;
    stream.delete().await;
}
