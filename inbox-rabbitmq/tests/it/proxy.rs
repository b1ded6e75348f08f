//! A TCP proxy in front of the broker: it can cut connections, hold everything back, refuse to answer, and it counts what
//! is out, which the broker itself tells nobody over AMQP.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicI64, Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Accepts on a port of its own for as long as it lives.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Shared {
    to: u16,
    cut: Mutex<CancellationToken>,
    open: watch::Sender<bool>,
    flows: watch::Sender<bool>,
    held: AtomicI64,
}

impl Proxy {
    /// Forwards to a port of this machine.
    pub(crate) async fn start(to: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            to,
            cut: Mutex::default(),
            open: watch::Sender::new(true),
            flows: watch::Sender::new(true),
            held: AtomicI64::new(0),
        });
        let stop = CancellationToken::new();
        let (serving, stopped) = (serve(listener, Arc::clone(&shared)), stop.clone());
        #[allow(clippy::disallowed_methods, reason = "the lint is about the library")]
        drop(tokio::spawn(async move { stopped.run_until_cancelled(serving).await }));
        Ok(Self { port, shared, _stop: stop.drop_guard() })
    }

    /// Cuts every connection that is there. New ones are let through.
    pub(crate) fn cut(&self) {
        let mut cut = self.shared.cut.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *cut).cancel();
    }

    /// Whether new connections are let through; otherwise they are accepted and nobody answers.
    pub(crate) fn open(&self, open: bool) {
        self.shared.open.send_replace(open);
    }

    /// Whether anything goes through the connections that are there; otherwise they are silent, and stay.
    pub(crate) fn flow(&self, flows: bool) {
        self.shared.flows.send_replace(flows);
    }

    /// How many deliveries have gone through and were not answered, on connections that are there.
    pub(crate) fn held(&self) -> u64 {
        u64::try_from(self.shared.held.load(Ordering::SeqCst)).unwrap_or(0)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((here, _)) = listener.accept().await {
        let token = shared.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            drop(token.run_until_cancelled(forward(here, &shared)).await);
        });
    }
}

/// What is out on one connection; nothing once it is gone.
struct Held<'a> {
    all: &'a AtomicI64,
    here: AtomicI64,
}

impl Held<'_> {
    fn add(&self, n: i64) {
        self.here.fetch_add(n, Ordering::SeqCst);
        self.all.fetch_add(n, Ordering::SeqCst);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.here.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

async fn forward(here: TcpStream, shared: &Shared) -> std::io::Result<()> {
    drop(shared.open.subscribe().wait_for(|open| *open).await);
    let there = TcpStream::connect(("127.0.0.1", shared.to)).await?;
    for stream in [&here, &there] {
        stream.set_nodelay(true)?;
    }
    let held = Held { all: &shared.held, here: AtomicI64::new(0) };
    let ((from_client, to_client), (from_broker, to_broker)) = (here.into_split(), there.into_split());
    tokio::select! {
        done = copy(from_client, to_broker, &shared.flows, &held) => done,
        done = copy(from_broker, to_client, &shared.flows, &held) => done,
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    flows: &watch::Sender<bool>,
    held: &Held<'_>,
) -> std::io::Result<()> {
    let mut frames = Frames::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        drop(flows.subscribe().wait_for(|flows| *flows).await);
        frames.see(&buffer[..read], |change| held.add(change));
        to.write_all(&buffer[..read]).await?;
    }
}

/// Finds the methods in one direction of a connection: a frame is its type, channel, size, payload and an end mark, and a
/// payload of type 1 starts with a class and a method.
#[derive(Default)]
struct Frames {
    head: Vec<u8>,
    /// Of the frame whose head was read, its end mark included.
    left: usize,
}

const METHOD: u8 = 1;
const BASIC: [u8; 2] = [0, 60];

impl Frames {
    fn see(&mut self, mut bytes: &[u8], mut changed: impl FnMut(i64)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            if self.head == *b"AMQP\0\0\x09\x01" {
                // What a client says first is no frame.
                self.head.clear();
                continue;
            }
            let is_method = self.head[0] == METHOD;
            if self.head.len() < if is_method { 11 } else { 7 } || self.head[0] == b'A' {
                continue;
            }
            let size = u32::from_be_bytes([self.head[3], self.head[4], self.head[5], self.head[6]]);
            self.left = size as usize + 1 - (self.head.len() - 7);
            if is_method && self.head[7..9] == BASIC {
                match self.head[10] {
                    // deliver
                    60 => changed(1),
                    // ack, reject, nack; none is for several
                    80 | 90 | 120 => changed(-1),
                    _ => {}
                }
            }
            self.head.clear();
        }
    }
}

#[test]
fn deliveries_and_their_answers_are_counted() {
    let mut bytes = b"AMQP\0\0\x09\x01".to_vec();
    let mut frame = |kind: u8, payload: &[u8]| {
        bytes.extend([kind, 0, 1]);
        bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend(payload);
        bytes.push(0xCE);
    };
    frame(METHOD, &[0, 60, 0, 60, 1, 2, 3]);
    frame(2, &[0, 60, 0, 60, 0, 0]);
    frame(3, &[]);
    frame(METHOD, &[0, 60, 0, 60]);
    frame(METHOD, &[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    frame(METHOD, &[0, 10, 0, 60]);
    for step in 1..20 {
        let (mut frames, mut changes) = (Frames::default(), Vec::new());
        bytes.chunks(step).for_each(|bytes| frames.see(bytes, |change| changes.push(change)));
        assert_eq!(changes, [1, 1, -1], "{step} bytes at a time");
    }
}
