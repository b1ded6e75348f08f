//! A service that plays Pub/Sub's part on one port of 127.0.0.1: for what the emulator does not do (it keeps the limit of
//! outstanding messages, counts deliveries, holds a key's later messages back, refuses), and for machines without one.
//! It speaks gRPC for messages and HTTP with JSON for everything else, as the client does.

pub(crate) mod proto;
pub(crate) mod service;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, Request, Response};
use inbox_core::Bytes;
use prost::Message;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use self::{
    proto::{
        AckRequest, AnyDetail, ErrorInfo, ModifyRequest, Properties, PublishRequest, PublishResponse, PullRequest,
        PullResponse, Received, Status,
    },
    service::{Handed, Service, Subscription},
};

/// gRPC's numbers.
pub(crate) const INVALID_ARGUMENT: i32 = 3;
pub(crate) const NOT_FOUND: i32 = 5;

/// The largest part of a message that is sent at once.
const WINDOW: u32 = 1 << 20;

/// What the service has seen, and what it was told to refuse.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) service: Service,
    next_stream: u64,
    /// The most that was outstanding of a subscription at a time.
    pub(crate) most_out: usize,
    pub(crate) pulls: Vec<PullRequest>,
    pub(crate) acked: Vec<String>,
    pub(crate) extended: Vec<(i32, usize)>,
    pub(crate) nacked: Vec<String>,
    pub(crate) published: Vec<PublishRequest>,
    /// The header that routes a call, by its path.
    routing: HashMap<String, String>,
    /// Streams are refused with this code.
    pub(crate) refuse_streams: Option<i32>,
    /// Acknowledgements of messages whose body ends in this are refused for good.
    pub(crate) refuse_acks: Option<u8>,
    /// Publishing is refused with this code.
    pub(crate) refuse_publish: Option<i32>,
    /// What a question about a subscription is answered with instead of it.
    pub(crate) refuse_get: Option<(u16, &'static str)>,
}

impl Seen {
    /// What routes a call of this name.
    pub(crate) fn routing_of(&self, call: &str) -> Option<&str> {
        self.routing.get(call).map(|params| params.trim_start_matches('&'))
    }
}

/// The service, on a port.
#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    seen: Arc<Mutex<Seen>>,
    pub(crate) address: SocketAddr,
}

impl StandIn {
    /// Serves on `port`, or on any.
    pub(crate) async fn start(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let this = Self { seen: Arc::default(), address: listener.local_addr()? };
        let serving = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        Ok(this)
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, stream: TcpStream) {
        let mut first = [0; 3];
        while stream.peek(&mut first).await.is_ok_and(|n| n < 3 && n > 0) {
            tokio::task::yield_now().await;
        }
        if &first != b"PRI" {
            return self.http(stream).await;
        }
        drop(stream.set_nodelay(true));
        let mut builder = h2::server::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
        let Ok(mut connection) = builder.handshake(stream).await else { return };
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(self.clone().grpc(request, respond));
        }
    }

    /// Answers requests about topics, subscriptions and snapshots, one after the other.
    async fn http(self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4_096];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..n]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            if body.len() < length.unwrap_or(0) {
                continue;
            }
            bytes.clear();
            let mut words = head.split(' ');
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let name = path.split('?').next().unwrap_or_default().trim_start_matches("/v1/");
            let (code, body) = self.answer(method, name, &serde_json::from_str(body).unwrap_or_default());
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            if stream.write_all(head.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, method: &str, name: &str, body: &Value) -> (u16, Value) {
        let mut seen = self.seen();
        let text = |field: &str| body[field].as_str().unwrap_or_default();
        if let Some((code, status)) = seen.refuse_get.filter(|_| method == "GET" && name.contains("/subscriptions/")) {
            return refused(code, status);
        }
        let service = &mut seen.service;
        match (method, name.split('/').nth(2).unwrap_or_default()) {
            ("PUT", "topics") if !service.topics.insert(name.to_owned()) => refused(409, "ALREADY_EXISTS"),
            ("PUT", "topics") => (200, json!({ "name": name })),
            ("GET", "topics") if service.topics.contains(name) => (200, json!({ "name": name })),
            ("PUT", "subscriptions") if service.subscriptions.contains_key(name) => refused(409, "ALREADY_EXISTS"),
            ("PUT", "subscriptions") if service.topics.contains(text("topic")) => {
                let flag = |field: &str| body[field].as_bool().unwrap_or(false);
                let (ordered, exact) = (flag("enableMessageOrdering"), flag("enableExactlyOnceDelivery"));
                let lease = body["ackDeadlineSeconds"].as_u64().unwrap_or(10);
                let subscription = Subscription::new(text("topic"), ordered, exact, lease);
                service.subscriptions.entry(name.to_owned()).or_insert(subscription);
                (200, described(name, &service.subscriptions[name]))
            }
            ("GET", "subscriptions") if service.subscriptions.contains_key(name) => {
                (200, described(name, &service.subscriptions[name]))
            }
            ("DELETE", "subscriptions") if service.subscriptions.remove(name).is_some() => (200, json!({})),
            ("POST", "subscriptions") if service.seek(name.trim_end_matches(":seek"), text("snapshot")) => {
                (200, json!({}))
            }
            ("PUT", "snapshots") => match service.snapshot(name, text("subscription")) {
                Some(expires) => {
                    let expires = google_cloud_wkt::Timestamp::clamp(expires.seconds, expires.nanos);
                    (200, json!({ "name": name, "expireTime": String::from(expires) }))
                }
                None => refused(404, "NOT_FOUND"),
            },
            ("DELETE", "snapshots") if service.forget_snapshot(name) => (200, json!({})),
            _ => refused(404, "NOT_FOUND"),
        }
    }

    async fn grpc(self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let routing = request.headers().get("x-goog-request-params").and_then(|value| value.to_str().ok());
        self.seen().routing.insert(path.clone(), routing.unwrap_or_default().to_owned());
        let mut body = request.into_body();
        let Some(message) = frame(&mut body, &mut Vec::new()).await else { return };
        let answer = match path.as_str() {
            "StreamingPull" => match PullRequest::decode(&message[..]) {
                Ok(pull) => return self.pull(pull, body, respond).await,
                Err(_) => Err((INVALID_ARGUMENT, Vec::new())),
            },
            "Acknowledge" => AckRequest::decode(&message[..]).map_or(MALFORMED, |request| self.acknowledge(request)),
            "ModifyAckDeadline" => {
                ModifyRequest::decode(&message[..]).map_or(MALFORMED, |request| self.modify(request))
            }
            _ => PublishRequest::decode(&message[..]).map_or(MALFORMED, |request| self.publish(request)),
        };
        end(respond, answer);
    }

    /// Delivers as much as the stream's limit allows, until the stream ends.
    async fn pull(self, pull: PullRequest, mut body: RecvStream, mut respond: SendResponse<Bytes>) {
        let stream = match self.next_stream(&pull) {
            Ok(stream) => stream,
            Err(code) => return end(respond, Err((code, Vec::new()))),
        };
        let head = Response::builder().header("content-type", "application/grpc").body(());
        let Ok(mut send) = respond.send_response(head.unwrap_or_default(), false) else { return };
        let mut buffer = Vec::new();
        loop {
            match self.next_response(stream, &pull) {
                Ok(response) if response.received.is_empty() => {}
                Ok(response) => {
                    if send.send_data(framed(&response), false).is_err() {
                        return;
                    }
                }
                Err(code) => {
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", code.into());
                    return drop(send.send_trailers(trailers));
                }
            }
            tokio::select! {
                more = frame(&mut body, &mut buffer) => if more.is_none() { return },
                () = sleep(Duration::from_millis(2)) => {}
            }
        }
    }

    /// The number of a stream that is opened now, or the code with which it is refused.
    fn next_stream(&self, pull: &PullRequest) -> Result<u64, i32> {
        let mut seen = self.seen();
        seen.pulls.push(pull.clone());
        seen.next_stream += 1;
        if let Some(code) = seen.refuse_streams {
            return Err(code);
        }
        if seen.service.subscriptions.contains_key(&pull.subscription) { Ok(seen.next_stream) } else { Err(NOT_FOUND) }
    }

    fn next_response(&self, stream: u64, pull: &PullRequest) -> Result<PullResponse, i32> {
        let mut seen = self.seen();
        let seen = &mut *seen;
        if let Some(code) = seen.refuse_streams {
            return Err(code);
        }
        let handed = seen.service.hand_out(stream, pull).ok_or(NOT_FOUND)?;
        let subscription = seen.service.subscriptions.get(&pull.subscription).ok_or(NOT_FOUND)?;
        seen.most_out = seen.most_out.max(subscription.all_out());
        let received = |handed: Handed| Received {
            ack_id: handed.ack_id,
            message: Some(handed.message),
            delivery_attempt: handed.delivery,
        };
        let properties = Some(Properties { exactly_once: subscription.exactly_once });
        Ok(PullResponse { received: handed.into_iter().map(received).collect(), properties })
    }

    fn acknowledge(&self, request: AckRequest) -> Answer {
        let mut seen = self.seen();
        let seen = &mut *seen;
        let subscription = seen.service.subscriptions.get_mut(&request.subscription).ok_or((NOT_FOUND, Vec::new()))?;
        let mut refused = HashMap::new();
        for id in request.ack_ids {
            let Some(message) = subscription.of(&id) else {
                refused.insert(id, INVALID_ID.to_owned());
                continue;
            };
            if seen.refuse_acks.is_some() && message.data.last().copied() == seen.refuse_acks {
                refused.insert(id, INVALID_ID.to_owned());
            } else if let Some(message) = subscription.acknowledge(&id) {
                seen.acked.push(String::from_utf8_lossy(&message.data).into_owned());
            }
        }
        confirmed(subscription.exactly_once, refused)
    }

    fn modify(&self, request: ModifyRequest) -> Answer {
        let mut seen = self.seen();
        let seen = &mut *seen;
        let subscription = seen.service.subscriptions.get_mut(&request.subscription).ok_or((NOT_FOUND, Vec::new()))?;
        let lease = Duration::from_secs(u64::try_from(request.seconds).unwrap_or(0));
        let mut refused = HashMap::new();
        if request.seconds > 0 {
            seen.extended.push((request.seconds, request.ack_ids.len()));
        }
        for id in request.ack_ids {
            let is_out = subscription.of(&id).is_some();
            if request.seconds > 0 {
                subscription.extend(&id, lease);
            } else if let Some(message) = subscription.give_back(&id) {
                seen.nacked.push(String::from_utf8_lossy(&message.data).into_owned());
            }
            if !is_out {
                refused.insert(id, INVALID_ID.to_owned());
            }
        }
        confirmed(subscription.exactly_once, refused)
    }

    fn publish(&self, request: PublishRequest) -> Answer {
        let mut seen = self.seen();
        if let Some(code) = seen.refuse_publish {
            return Err((code, Vec::new()));
        }
        let ids = seen.service.publish(request.clone()).ok_or((NOT_FOUND, Vec::new()))?;
        seen.published.push(request);
        Ok(PublishResponse { ids }.encode_to_vec())
    }
}

/// The response's bytes, or a code and its details.
type Answer = Result<Vec<u8>, (i32, Vec<u8>)>;

const MALFORMED: Answer = Err((INVALID_ARGUMENT, Vec::new()));
const INVALID_ID: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";

/// What a subscription says of itself.
fn described(name: &str, subscription: &Subscription) -> Value {
    json!({
        "name": name,
        "topic": subscription.topic,
        "enableMessageOrdering": subscription.ordered,
        "enableExactlyOnceDelivery": subscription.exactly_once,
        "ackDeadlineSeconds": subscription.lease,
        "messageRetentionDuration": "604800s",
    })
}

fn refused(code: u16, status: &str) -> (u16, Value) {
    (code, json!({ "error": { "code": code, "message": "no", "status": status } }))
}

/// The answer to acknowledgements; only a subscription that confirms says what it refused.
fn confirmed(exactly_once: bool, refused: HashMap<String, String>) -> Answer {
    if refused.is_empty() || !exactly_once {
        return Ok(Vec::new());
    }
    let reason = "EXACTLY_ONCE_ACKID_FAILURE".to_owned();
    let info = ErrorInfo { reason, domain: "pubsub.googleapis.com".to_owned(), metadata: refused };
    let detail =
        AnyDetail { type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(), value: info.encode_to_vec() };
    Err((INVALID_ARGUMENT, Status { code: INVALID_ARGUMENT, details: vec![detail] }.encode_to_vec()))
}

fn end(mut respond: SendResponse<Bytes>, answer: Answer) {
    let head = Response::builder().header("content-type", "application/grpc");
    match answer {
        Ok(message) => {
            let Ok(mut send) = respond.send_response(head.body(()).unwrap_or_default(), false) else { return };
            drop(send.send_data(prefixed(&message), false));
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", 0.into());
            drop(send.send_trailers(trailers));
        }
        Err((code, details)) => {
            let mut head = head.header("grpc-status", code).header("grpc-message", "no");
            if !details.is_empty() {
                head = head.header("grpc-status-details-bin", STANDARD_NO_PAD.encode(details));
            }
            drop(respond.send_response(head.body(()).unwrap_or_default(), true));
        }
    }
}

fn framed(message: &impl Message) -> Bytes {
    prefixed(&message.encode_to_vec())
}

/// With gRPC's prefix: not compressed, and how long it is.
fn prefixed(message: &[u8]) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.into()
}

/// The next message of a request; `None` at its end. Cancel safe: what has come stays in `buffer`.
async fn frame(body: &mut RecvStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = buffer.get(1..5).and_then(|length| length.try_into().ok()).map(u32::from_be_bytes) {
            let end = 5 + usize::try_from(length).ok()?;
            if buffer.len() >= end {
                let message = buffer[5..end].to_vec();
                buffer.drain(..end);
                return Some(message);
            }
        }
        let data = body.data().await?.ok()?;
        body.flow_control().release_capacity(data.len()).ok()?;
        buffer.extend_from_slice(&data);
    }
}
