//! A service that speaks SQS: what Amazon's documentation says of FIFO queues and receipt handles, and what a test wants to
//! go wrong.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::Instant,
};

/// From its receive on, no message is invisible for longer.
const CEILING: Duration = Duration::from_secs(12 * 3_600);
/// For how long a FIFO queue knows what was sent.
const DEDUPLICATION: Duration = Duration::from_secs(300);

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `ReceiveMessage`.
    pub(crate) action: String,
    /// Names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Value,
}

/// What is answered instead: a status, and a body.
pub(crate) type Answer = (u16, Value);
/// Answers a request before it is looked at.
type Meddle = Box<dyn Fn(&Request) -> Option<Answer> + Send + Sync>;
/// Fails one entry of a batch: the code, and whether the sender is at fault.
type FailEntry = Box<dyn Fn(&str, &Value) -> Option<(&'static str, bool)> + Send + Sync>;

/// The service, on 127.0.0.1, in a thread of its own.
pub(crate) struct Service {
    address: SocketAddr,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    queues: HashMap<String, Queue>,
    requests: Vec<Request>,
    meddle: Option<Meddle>,
    fail_entry: Option<FailEntry>,
    down: bool,
}

#[derive(Default)]
struct Queue {
    fifo: bool,
    attributes: HashMap<String, String>,
    sent: u64,
    messages: BTreeMap<u64, Stored>,
    /// Every receipt handle that was ever given out.
    handles: HashMap<String, u64>,
    deduplicated: HashMap<String, Instant>,
    most_held: usize,
}

struct Stored {
    id: String,
    body: String,
    attributes: Value,
    group: Option<String>,
    sent: u128,
    received: Option<Instant>,
    visible_at: Instant,
    count: u32,
    handle: String,
}

impl Queue {
    fn held(&self, now: Instant) -> usize {
        self.messages.values().filter(|message| message.visible_at > now).count()
    }

    /// The message that a receipt handle belongs to, and whether it is the last one and its lease has not ended.
    fn find(&self, handle: &str, now: Instant) -> Option<(u64, bool)> {
        let number = *self.handles.get(handle)?;
        let message = self.messages.get(&number)?;
        Some((number, message.handle == handle && message.visible_at > now))
    }

    fn receive(&mut self, most: usize, lease: Duration) -> Vec<Value> {
        let now = Instant::now();
        // Of a group nothing is given out while anything is held.
        let locked: HashSet<String> = self
            .messages
            .values()
            .filter(|message| self.fifo && message.visible_at > now)
            .filter_map(|message| message.group.clone())
            .collect();
        // As much as there is of the first group, then of the next one.
        let mut order: Vec<u64> = Vec::new();
        let free = |message: &Stored| {
            message.visible_at <= now && !message.group.as_ref().is_some_and(|group| locked.contains(group))
        };
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut groups: Vec<Vec<u64>> = Vec::new();
        for (number, message) in self.messages.iter().filter(|(_, message)| free(message)) {
            match message.group.as_deref().filter(|_| self.fifo) {
                None if order.len() < most => order.push(*number),
                None => break,
                Some(group) => {
                    let place = *places.entry(group).or_insert_with(|| {
                        groups.push(Vec::new());
                        groups.len() - 1
                    });
                    groups[place].push(*number);
                }
            }
        }
        order.extend(groups.into_iter().flatten().take(most));
        let mut given = Vec::new();
        for number in &order {
            let Some(message) = self.messages.get_mut(number) else { continue };
            message.count += 1;
            message.visible_at = now + lease;
            message.received.get_or_insert(now);
            message.handle = format!("{}#{}", message.id, message.count);
            self.handles.insert(message.handle.clone(), *number);
            let mut system = json!({
                "ApproximateReceiveCount": message.count.to_string(),
                "SentTimestamp": message.sent.to_string(),
            });
            if let Some(group) = &message.group {
                system["MessageGroupId"] = json!(group);
            }
            given.push(json!({
                "MessageId": message.id,
                "ReceiptHandle": message.handle,
                "Body": message.body,
                "Attributes": system,
                "MessageAttributes": message.attributes,
            }));
        }
        self.most_held = self.most_held.max(self.held(now));
        given
    }

    fn delete(&mut self, handle: &str) -> Result<(), &'static str> {
        let now = Instant::now();
        match self.find(handle, now) {
            None if !self.handles.contains_key(handle) => Err("ReceiptHandleIsInvalid"),
            // It is deleted already.
            None => Ok(()),
            Some((_, false)) if self.fifo => Err("InvalidParameterValue"),
            Some((number, live)) => {
                // An old receipt handle is taken, and does nothing.
                if live || self.messages.get(&number).is_some_and(|message| message.handle == handle) {
                    self.messages.remove(&number);
                }
                Ok(())
            }
        }
    }

    fn change(&mut self, handle: &str, seconds: u64) -> Result<(), &'static str> {
        let now = Instant::now();
        match self.find(handle, now) {
            None => Err("InvalidParameterValue"),
            Some((_, false)) => Err("AWS.SimpleQueueService.MessageNotInflight"),
            Some((number, true)) => {
                let Some(message) = self.messages.get_mut(&number) else { return Err("InvalidParameterValue") };
                let until = now + Duration::from_secs(seconds);
                if message.received.is_some_and(|received| until > received + CEILING) {
                    return Err("InvalidParameterValue");
                }
                message.visible_at = until;
                Ok(())
            }
        }
    }

    fn send(&mut self, entry: &Value) -> Result<(), &'static str> {
        let now = Instant::now();
        let text = |name: &str| entry[name].as_str().map(str::to_owned);
        let (body, group, deduplication) =
            (text("MessageBody"), text("MessageGroupId"), text("MessageDeduplicationId"));
        let body = body.filter(|body| !body.is_empty()).ok_or("MissingParameter")?;
        if self.fifo {
            let id = deduplication.ok_or("InvalidParameterValue")?;
            group.as_ref().ok_or("MissingParameter")?;
            self.deduplicated.retain(|_, sent| *sent + DEDUPLICATION > now);
            if self.deduplicated.insert(id, now).is_some() {
                return Ok(());
            }
        }
        let number = self.sent;
        self.sent += 1;
        let stored = Stored {
            id: format!("message-{number}"),
            body,
            attributes: entry["MessageAttributes"].clone(),
            group,
            sent: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
            received: None,
            visible_at: now,
            count: 0,
            handle: String::new(),
        };
        self.messages.insert(number, stored);
        Ok(())
    }
}

impl Service {
    pub(crate) fn start() -> Arc<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a setting");
        let address = listener.local_addr().expect("bound");
        let service = Arc::new(Self { address, state: Mutex::default(), changed: Notify::new() });
        let serving = Arc::clone(&service);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(Arc::clone(&serving), stream));
                }
            });
        });
        service
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `sqs://host:port`.
    pub(crate) fn url(&self) -> String {
        format!("sqs://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on requests are answered so, where it says how.
    pub(crate) fn meddle(&self, meddle: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static) {
        self.state().meddle = Some(Box::new(meddle));
    }

    /// From now on these entries fail.
    pub(crate) fn fail_entries(
        &self,
        fail: impl Fn(&str, &Value) -> Option<(&'static str, bool)> + Send + Sync + 'static,
    ) {
        self.state().fail_entry = Some(Box::new(fail));
    }

    /// Whether every connection is cut.
    pub(crate) fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// The requests of an action, in their order.
    pub(crate) fn requests(&self, action: &str) -> Vec<Request> {
        self.state().requests.iter().filter(|request| request.action == action).cloned().collect()
    }

    /// Ends the lease of the message with this text as its `message-id`, which is held.
    pub(crate) fn end_lease(&self, queue: &str, id: &str) {
        let now = Instant::now();
        let mut state = self.state();
        let queue = state.queues.get_mut(queue).expect("the queue is there");
        let held = queue.messages.values_mut().filter(|message| message.visible_at > now);
        let mut found = held.filter(|message| message.attributes["message-id"]["StringValue"] == id);
        found.next().expect("the message is held").visible_at = now;
        drop(state);
        self.changed.notify_waiters();
    }

    /// How many messages were held at the same time at most.
    pub(crate) fn most_held(&self, queue: &str) -> usize {
        self.state().queues[queue].most_held
    }

    /// How many messages are held now.
    pub(crate) fn held(&self, queue: &str) -> usize {
        self.state().queues[queue].held(Instant::now())
    }

    pub(crate) fn set_attribute(&self, queue: &str, name: &str, value: &str) {
        let mut state = self.state();
        state.queues.get_mut(queue).expect("there").attributes.insert(name.to_owned(), value.to_owned());
    }

    async fn answer(&self, request: &Request) -> Answer {
        let body = &request.body;
        let name = match request.action.as_str() {
            "CreateQueue" | "GetQueueUrl" => body["QueueName"].as_str().unwrap_or_default(),
            _ => body["QueueUrl"].as_str().and_then(|url| url.rsplit('/').next()).unwrap_or_default(),
        };
        let queue_url = json!({ "QueueUrl": format!("http://{}/123456789012/{name}", self.address) });
        if request.action == "CreateQueue" {
            let queue = Queue { fifo: name.ends_with(".fifo"), ..Queue::default() };
            self.state().queues.entry(name.to_owned()).or_insert(queue);
            return (200, queue_url);
        }
        if !self.state().queues.contains_key(name) {
            return refused("com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist.");
        }
        match request.action.as_str() {
            "GetQueueUrl" => (200, queue_url),
            "DeleteQueue" => {
                self.state().queues.remove(name);
                (200, json!({}))
            }
            "GetQueueAttributes" => (200, self.attributes(name)),
            "ReceiveMessage" => self.receive(name, body).await,
            "SendMessageBatch" => self.batch(request, name, |queue, entry| queue.send(entry)),
            "DeleteMessageBatch" => self.batch(request, name, |queue, entry| queue.delete(handle_of(entry))),
            "ChangeMessageVisibilityBatch" => self.batch(request, name, |queue, entry| {
                queue.change(handle_of(entry), entry["VisibilityTimeout"].as_u64().unwrap_or_default())
            }),
            other => refused("com.amazonaws.sqs#UnsupportedOperation", other),
        }
    }

    fn attributes(&self, name: &str) -> Value {
        let state = self.state();
        let queue = &state.queues[name];
        let held = queue.held(Instant::now());
        let mut all = json!({
            "ApproximateNumberOfMessages": (queue.messages.len() - held).to_string(),
            "ApproximateNumberOfMessagesNotVisible": held.to_string(),
            "ApproximateNumberOfMessagesDelayed": "0",
            "MaximumMessageSize": "1048576",
            "MessageRetentionPeriod": "345600",
        });
        queue.attributes.iter().for_each(|(name, value)| all[name] = json!(value));
        json!({ "Attributes": all })
    }

    async fn receive(&self, name: &str, body: &Value) -> Answer {
        let most = usize::try_from(body["MaxNumberOfMessages"].as_u64().unwrap_or(1)).unwrap_or(1);
        assert!((1..=10).contains(&most), "MaxNumberOfMessages is {most}");
        let lease = Duration::from_secs(body["VisibilityTimeout"].as_u64().unwrap_or(30));
        let deadline = Instant::now() + Duration::from_secs(body["WaitTimeSeconds"].as_u64().unwrap_or(0));
        loop {
            let changed = self.changed.notified();
            let given = match self.state().queues.get_mut(name) {
                Some(queue) => queue.receive(most, lease),
                None => return refused("com.amazonaws.sqs#QueueDoesNotExist", "It was deleted."),
            };
            if !given.is_empty() {
                return (200, json!({ "Messages": given }));
            }
            if Instant::now() >= deadline {
                return (200, json!({}));
            }
            // Leases end without a word.
            drop(tokio::time::timeout(Duration::from_millis(20), changed).await);
        }
    }

    fn batch(
        &self,
        request: &Request,
        name: &str,
        mut each: impl FnMut(&mut Queue, &Value) -> Result<(), &'static str>,
    ) -> Answer {
        let mut state = self.state();
        let fail = state.fail_entry.take();
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        let entries = request.body["Entries"].as_array().cloned().unwrap_or_default();
        assert!((1..=10).contains(&entries.len()), "{} entries", entries.len());
        let ids: HashSet<&str> = entries.iter().filter_map(|entry| entry["Id"].as_str()).collect();
        assert_eq!(ids.len(), entries.len(), "ids are distinct");
        let Some(queue) = state.queues.get_mut(name) else {
            return refused("com.amazonaws.sqs#QueueDoesNotExist", "It was deleted.");
        };
        for entry in &entries {
            let id = &entry["Id"];
            let answer = match fail.as_ref().and_then(|fail| fail(&request.action, entry)) {
                Some((code, sender)) => Err((code, sender)),
                None => each(queue, entry).map_err(|code| (code, true)),
            };
            match answer {
                Ok(()) => successful.push(json!({ "Id": id, "MessageId": "m", "MD5OfMessageBody": "" })),
                Err((code, sender)) => {
                    failed.push(json!({ "Id": id, "Code": code, "SenderFault": sender, "Message": "no" }));
                }
            }
        }
        if state.fail_entry.is_none() {
            state.fail_entry = fail;
        }
        drop(state);
        self.changed.notify_waiters();
        (200, json!({ "Successful": successful, "Failed": failed }))
    }
}

fn handle_of(entry: &Value) -> &str {
    entry["ReceiptHandle"].as_str().unwrap_or_default()
}

/// An error as the service words it.
pub(crate) fn refused(code: &str, message: &str) -> Answer {
    (400, json!({ "__type": code, "message": message }))
}

async fn serve(service: Arc<Service>, stream: TcpStream) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(request) = read(&mut reader).await {
        let meddled = {
            let mut state = service.state();
            if state.down {
                return;
            }
            state.requests.push(request.clone());
            state.meddle.as_ref().and_then(|meddle| meddle(&request))
        };
        let (status, body) = match meddled {
            Some(answer) => answer,
            None => service.answer(&request).await,
        };
        if service.state().down {
            return;
        }
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if writer.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(reader: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> Option<Request> {
    let mut headers = HashMap::new();
    let mut line = String::new();
    reader.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    loop {
        line.clear();
        reader.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = vec![0; headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body).await.ok()?;
    let action =
        headers.get("x-amz-target").and_then(|target| target.rsplit('.').next()).unwrap_or_default().to_owned();
    Some(Request { action, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}

/// Deletes the queue of a URL, by Amazon's own client.
pub(crate) async fn delete_queue(url: &str) {
    let (authority, name) = url.trim_start_matches("sqs://").split_once('/').expect("a queue");
    let name = name.split('?').next().expect("a name");
    let credentials = aws_credential_types::Credentials::new("test", "test", None, None, "tests");
    let config = aws_sdk_sqs::config::Builder::new()
        .region(aws_sdk_sqs::config::Region::new("us-east-1"))
        .endpoint_url(format!("http://{authority}"))
        .credentials_provider(credentials)
        .build();
    let queue = format!("http://{authority}/123456789012/{name}");
    drop(aws_sdk_sqs::Client::from_conf(config).delete_queue().queue_url(queue).send().await);
}
