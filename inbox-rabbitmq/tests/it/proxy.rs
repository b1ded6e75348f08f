//! A TCP proxy in front of the broker: it can cut connections, hold everything back, refuse to answer, and it counts what
//! is out, which the broker itself tells nobody over AMQP.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
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

/// What is out on one connection, by channel and number; nothing once it is gone.
struct Held<'a> {
    all: &'a AtomicI64,
    here: Mutex<BTreeSet<(u16, u64)>>,
}

impl Held<'_> {
    fn change(&self, change: Change) {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let before = here.len();
        match change {
            Change::Out(channel, tag) => drop(here.insert((channel, tag))),
            Change::Answered(channel, tag) => drop(here.remove(&(channel, tag))),
            Change::AnsweredUpTo(channel, tag) => here.retain(|(of, at)| *of != channel || *at > tag),
        }
        let (before, after) = (i64::try_from(before).unwrap_or(0), i64::try_from(here.len()).unwrap_or(0));
        self.all.fetch_add(after - before, Ordering::SeqCst);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let here = self.here.get_mut().unwrap_or_else(PoisonError::into_inner).len();
        self.all.fetch_sub(i64::try_from(here).unwrap_or(0), Ordering::SeqCst);
    }
}

async fn forward(here: TcpStream, shared: &Shared) -> std::io::Result<()> {
    drop(shared.open.subscribe().wait_for(|open| *open).await);
    let there = TcpStream::connect(("127.0.0.1", shared.to)).await?;
    for stream in [&here, &there] {
        stream.set_nodelay(true)?;
    }
    let held = Held { all: &shared.held, here: Mutex::default() };
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
        frames.see(&buffer[..read], |change| held.change(change));
        to.write_all(&buffer[..read]).await?;
    }
}

/// What a method says of deliveries: its channel and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Out(u16, u64),
    Answered(u16, u64),
    AnsweredUpTo(u16, u64),
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
/// What stands before a frame's payload.
const HEAD: usize = 7;

impl Frames {
    fn see(&mut self, mut bytes: &[u8], mut changed: impl FnMut(Change)) {
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
            if self.head.len() < HEAD || self.head[0] == b'A' {
                continue;
            }
            let size = u32::from_be_bytes([self.head[3], self.head[4], self.head[5], self.head[6]]) as usize;
            if self.head[0] == METHOD {
                if self.head.len() < HEAD + size {
                    continue;
                }
                let channel = u16::from_be_bytes([self.head[1], self.head[2]]);
                change(channel, &self.head[HEAD..]).into_iter().for_each(&mut changed);
                self.left = 1;
            } else {
                self.left = size + 1;
            }
            self.head.clear();
        }
    }
}

fn change(channel: u16, method: &[u8]) -> Option<Change> {
    let (class, rest) = method.split_first_chunk::<2>()?;
    let ([0, method], arguments) = rest.split_first_chunk::<2>()? else { return None };
    if *class != BASIC {
        return None;
    }
    let number = |arguments: &[u8]| arguments.first_chunk::<8>().map(|number| u64::from_be_bytes(*number));
    match method {
        // deliver: the consumer's name, then the number
        60 => Some(Change::Out(channel, number(arguments.get(1 + usize::from(*arguments.first()?)..)?)?)),
        // ack and nack, of which the first bit behind the number says that all up to it are meant
        80 | 120 if arguments.get(8)? & 1 == 1 => Some(Change::AnsweredUpTo(channel, number(arguments)?)),
        // and reject
        80 | 90 | 120 => Some(Change::Answered(channel, number(arguments)?)),
        _ => None,
    }
}

#[test]
fn deliveries_and_their_answers_are_seen() {
    let mut bytes = b"AMQP\0\0\x09\x01".to_vec();
    let mut frame = |kind: u8, payload: &[u8]| {
        bytes.extend([kind, 0, 1]);
        bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend(payload);
        bytes.push(0xCE);
    };
    let number = |last: u8| [0, 0, 0, 0, 0, 0, 1, last];
    let deliver = |last| [&[0, 60, 0, 60, 2, b'c', b't'], &number(last)[..], &[0, 0, 0]].concat();
    let answer = |method, last, bits| [&[0, 60, 0, method], &number(last)[..], &[bits]].concat();
    frame(METHOD, &deliver(1));
    frame(2, &[0, 60, 0, 60, 0, 0]);
    frame(3, &[]);
    frame(METHOD, &deliver(2));
    frame(METHOD, &answer(80, 2, 0));
    frame(METHOD, &answer(80, 3, 1));
    frame(METHOD, &answer(120, 4, 2));
    frame(METHOD, &answer(90, 5, 1));
    frame(METHOD, &[0, 10, 0, 60]);
    let (out, answered) = (|last: u64| Change::Out(1, 256 + last), |last: u64| Change::Answered(1, 256 + last));
    let expected = [out(1), out(2), answered(2), Change::AnsweredUpTo(1, 259), answered(4), answered(5)];
    for step in 1..20 {
        let (mut frames, mut changes) = (Frames::default(), Vec::new());
        bytes.chunks(step).for_each(|bytes| frames.see(bytes, |change| changes.push(change)));
        assert_eq!(changes, expected, "{step} bytes at a time");
    }
}

#[test]
fn an_answer_to_several_counts_for_all_of_its_channel() {
    let all = AtomicI64::new(0);
    let held = Held { all: &all, here: Mutex::default() };
    for (channel, tag) in [(1, 1), (1, 2), (1, 3), (2, 1)] {
        held.change(Change::Out(channel, tag));
    }
    held.change(Change::Answered(1, 2));
    held.change(Change::AnsweredUpTo(1, 2));
    assert_eq!(all.load(Ordering::SeqCst), 2);
    drop(held);
    assert_eq!(all.load(Ordering::SeqCst), 0);
}
