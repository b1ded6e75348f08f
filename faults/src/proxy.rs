//! A TCP proxy between a consumer and a server: passes, holds everything back, cuts connections or the answer to a COMMIT.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::watch,
};

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything.
    Pass,
    /// Nothing, and nobody is told: as when packets are dropped. What was held back passes later.
    Hold,
    /// Everything but, one time in so many, the answer to a COMMIT: the connection is cut in its place.
    CutCommits {
        /// Whether the server gets the COMMIT.
        forward: bool,
        /// One in so many.
        every: u64,
    },
}

/// A proxy on a port of 127.0.0.1.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    cuts: Arc<AtomicU64>,
    /// Each connection listens while it lives: a change ends it.
    ends: watch::Sender<()>,
}

/// COMMIT as a simple query of PostgreSQL's protocol.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

impl Proxy {
    /// Listens on `port`, or on any when it is 0.
    pub(crate) async fn start(port: u16, target: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.context("a port for the proxy")?;
        let port = listener.local_addr()?.port();
        let (mode, seen) = watch::channel(Mode::Pass);
        let cuts = Arc::new(AtomicU64::new(0));
        let (counted, commits) = (Arc::clone(&cuts), Arc::new(AtomicU64::new(0)));
        let ends = watch::Sender::new(());
        let end = ends.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let link = Link { mode: seen.clone(), cuts: Arc::clone(&counted), commits: Arc::clone(&commits) };
                let mut end = end.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        () = link.serve(client, target) => {}
                        _ = end.changed() => {}
                    }
                });
            }
        });
        Ok(Self { port, mode, cuts, ends })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Cuts all connections, as a router that is restarted does; how many there were. New ones are let in.
    pub(crate) fn cut(&self) -> usize {
        let connections = self.ends.receiver_count();
        self.ends.send_replace(());
        connections
    }

    /// How many COMMITs were cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }
}

/// One connection.
struct Link {
    mode: watch::Receiver<Mode>,
    cuts: Arc<AtomicU64>,
    commits: Arc<AtomicU64>,
}

impl Link {
    async fn serve(self, client: TcpStream, target: u16) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
        // Small packets both ways: a proxy that waits would be slower than the network it stands for.
        drop(client.set_nodelay(true));
        drop(server.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let cut = AtomicBool::new(false);
        // When one direction ends, both halves of both sockets are dropped, which closes them.
        tokio::select! {
            () = self.upstream(from_client, to_server, &cut) => {}
            () = self.downstream(from_server, to_client, &cut) => {}
        }
    }

    async fn open(&self) -> Mode {
        let mut mode = self.mode.clone();
        let seen = mode.wait_for(|mode| *mode != Mode::Hold).await.map(|mode| *mode);
        seen.unwrap_or(Mode::Pass)
    }

    async fn upstream(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cut: &AtomicBool) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let bytes = &buffer[..read];
            if let Mode::CutCommits { forward, every } = self.open().await
                && bytes.windows(COMMIT.len()).any(|window| window == COMMIT)
                && (self.commits.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(every)
            {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                if !forward {
                    return;
                }
                cut.store(true, Ordering::SeqCst);
            }
            if to.write_all(bytes).await.is_err() {
                return;
            }
        }
    }

    async fn downstream(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cut: &AtomicBool) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            self.open().await;
            // The server has done what it was asked to; nobody hears of it.
            if cut.load(Ordering::SeqCst) || to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    drop(tokio::io::copy(&mut from, &mut to).await);
                });
            }
        });
        port
    }

    async fn ask(stream: &mut TcpStream, what: &[u8]) -> Option<Vec<u8>> {
        stream.write_all(what).await.ok()?;
        let mut answer = vec![0; what.len()];
        let read = tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut answer)).await;
        read.ok()?.ok()?;
        Some(answer)
    }

    #[tokio::test]
    async fn it_passes_holds_and_passes_again() {
        let proxy = Proxy::start(0, echo().await).await.expect("a proxy");
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("connects");
        assert_eq!(ask(&mut stream, b"one").await.as_deref(), Some(&b"one"[..]));
        proxy.set(Mode::Hold);
        assert_eq!(ask(&mut stream, b"two").await, None);
        proxy.set(Mode::Pass);
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).await.expect("what was held back");
        assert_eq!(&answer, b"two");
    }

    #[tokio::test]
    async fn connections_are_cut_and_new_ones_let_in() {
        let proxy = Proxy::start(0, echo().await).await.expect("a proxy");
        assert_eq!(proxy.cut(), 0);
        for _ in 0..2 {
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("connects");
            assert_eq!(ask(&mut stream, b"one").await.as_deref(), Some(&b"one"[..]));
            assert_eq!(proxy.cut(), 1);
            assert_eq!(ask(&mut stream, b"two").await, None);
        }
    }

    #[tokio::test]
    async fn the_answer_to_a_commit_is_cut() {
        let proxy = Proxy::start(0, echo().await).await.expect("a proxy");
        for forward in [true, false] {
            proxy.set(Mode::CutCommits { forward, every: 1 });
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("connects");
            assert_eq!(ask(&mut stream, b"SELECT").await.as_deref(), Some(&b"SELECT"[..]));
            assert_eq!(ask(&mut stream, COMMIT).await, None);
        }
        assert_eq!(proxy.cuts(), 2);
    }
}
