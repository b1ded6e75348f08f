//! What end-to-end cases are written with: a topic, a consumer, and handlers that do as a script says.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use inbox_core::{
    Backoff, BoxError, Bytes, Handler, HandlerError, Inbox, InboxBuilder, InboxError, InboxHandle, InboxStore, Message,
    Raw, Transport,
    failure_store::{FailureRow, FailureStore},
    message::printable,
    operator::Operator,
};
use tokio::{runtime::Runtime, task::JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    ensure_eq,
    harness::{CaseResult, FullStoreSubject, Link, TransportSubject, Tx, unique, until, waiting},
    suite::Stage,
};

/// A fresh topic, and a consumer that nobody else is.
pub(crate) struct Scene<S: FullStoreSubject> {
    pub(crate) transport: Arc<dyn TransportSubject>,
    pub(crate) subject: Arc<S>,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) store: Arc<S::Store>,
    /// The consumer, and the scope of its effects.
    pub(crate) name: String,
    pub(crate) journal: Journal,
}

// Not derived: `S` itself is not cloned.
impl<S: FullStoreSubject> Clone for Scene<S> {
    fn clone(&self) -> Self {
        Self {
            transport: Arc::clone(&self.transport),
            subject: Arc::clone(&self.subject),
            link: Arc::clone(&self.link),
            store: Arc::clone(&self.store),
            name: self.name.clone(),
            journal: self.journal.clone(),
        }
    }
}

impl<S: FullStoreSubject> Stage for Scene<S> {
    type Subjects = (Arc<dyn TransportSubject>, Arc<S>);

    async fn set((transport, subject): Self::Subjects) -> Result<Self, BoxError> {
        let link = waiting("a fresh topic", transport.fresh()).await?;
        let store = waiting("the store to open", subject.open()).await?;
        Ok(Self { transport, subject, link, store, name: unique("consumer"), journal: Journal::default() })
    }
}

/// Every handler call, in order, over all instances; and which of them were dropped half-way.
#[derive(Clone, Default)]
pub(crate) struct Journal {
    calls: Arc<Mutex<Vec<String>>>,
    dropped: Arc<Mutex<Vec<String>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a handler was dropped.
struct Dropped<'a>(&'a Journal, &'a str);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        lock(&self.0.dropped).push(self.1.to_owned());
    }
}

impl Journal {
    /// Notes a call and returns the how-manieth of this message it is.
    fn note(&self, label: &str) -> usize {
        let mut calls = lock(&self.calls);
        calls.push(label.to_owned());
        calls.iter().filter(|call| *call == label).count()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        lock(&self.calls).clone()
    }

    /// Whose handlers hung and were dropped.
    pub(crate) fn dropped(&self) -> Vec<String> {
        lock(&self.dropped).clone()
    }

    pub(crate) fn of(&self, label: &str) -> usize {
        self.calls().iter().filter(|call| *call == label).count()
    }
}

/// One call of a handler.
pub(crate) struct Call<'a> {
    /// The message's body, as text: also its effect.
    pub(crate) label: &'a str,
    /// How many calls this message has had in this case, this one included.
    pub(crate) nth: usize,
    pub(crate) message: &'a Message<Raw>,
}

/// What a handler does after it has applied its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Succeed,
    /// Succeed after a while.
    Sleep(Duration),
    Fail,
    Reject,
    Panic,
    /// Never return.
    Hang,
    /// Send a statement that fails, swallow the error, and succeed.
    Swallow,
    /// `COMMIT` by SQL, and succeed.
    RawCommit,
    /// `ROLLBACK` by SQL, and succeed.
    RawRollback,
    /// Succeed whether or not the effect could be applied.
    Careless,
}

/// Decides what a handler does.
pub(crate) type Script = Arc<dyn Fn(&Call<'_>) -> Act + Send + Sync>;

pub(crate) fn script(script: impl Fn(&Call<'_>) -> Act + Send + Sync + 'static) -> Script {
    Arc::new(script)
}

/// Every handler succeeds.
pub(crate) fn good() -> Script {
    script(|_| Act::Succeed)
}

/// The handler of all cases.
///
/// It cannot implement [`Handler`] itself: over a store that is a type parameter that would collide with the impl for
/// functions (E0119). So [`handler`] makes functions of it.
pub(crate) struct Actor<S: FullStoreSubject> {
    subject: Arc<S>,
    scope: String,
    script: Script,
    journal: Journal,
}

impl<S: FullStoreSubject> Actor<S> {
    /// Notes the call and applies an effect.
    pub(crate) async fn apply(&self, label: &str, tx: &mut Tx<S>) -> Result<(), HandlerError> {
        self.journal.note(label);
        self.subject.apply(tx, &self.scope, label).await
    }

    /// Applies the message's effect and does what the script says.
    async fn act(&self, message: Message<Raw>, tx: &mut Tx<S>) -> Result<(), HandlerError> {
        let label = label(&message.body.0);
        let nth = self.journal.note(&label);
        let act = (self.script)(&Call { label: &label, nth, message: &message });
        let applied = self.subject.apply(tx, &self.scope, &label).await;
        if act != Act::Careless {
            applied?;
        }
        match act {
            Act::Succeed | Act::Careless => {}
            Act::Sleep(time) => tokio::time::sleep(time).await,
            Act::Fail => return Err(HandlerError::retry(format!("{label} fails as the script says"))),
            Act::Reject => return Err(HandlerError::reject(format!("{label} is rejected as the script says"))),
            // As a panic, without the backtrace in the suite's output.
            Act::Panic => std::panic::resume_unwind(Box::new(format!("{label} panics as the script says"))),
            Act::Hang => {
                let _dropped = Dropped(&self.journal, &label);
                std::future::pending().await
            }
            Act::Swallow => drop(self.subject.failing_statement(tx).await),
            Act::RawCommit => drop(self.subject.raw_commit(tx).await),
            Act::RawRollback => drop(self.subject.raw_rollback(tx).await),
        }
        Ok(())
    }
}

/// Only says what a closure's type is.
pub(crate) fn handler<E, T, F>(handler: F) -> impl Handler<E, T>
where
    E: Send + 'static,
    T: 'static,
    F: for<'a> Fn(E, &'a mut T) -> BoxFuture<'a, Result<(), HandlerError>> + Send + Sync + 'static,
{
    handler
}

/// The text by which a body is known: effects are text, which no database lets contain everything.
pub(crate) fn label(body: &[u8]) -> String {
    let shown = printable(body, 40);
    if body.len() > 40 { format!("{shown}#{}", body.len()) } else { shown }
}

/// A message with an id of its own, whose key is the first letter of its label.
pub(crate) fn message(label: &str) -> Message {
    Message::new(Bytes::copy_from_slice(label.as_bytes()))
        .id(Uuid::now_v7().to_string())
        .kind("conformance.case")
        .key(label[..1].to_owned())
}

/// A message without an id.
pub(crate) fn nameless(label: &str) -> Message {
    let mut message = message(label);
    message.id = None;
    message
}

pub(crate) fn messages<'a>(labels: impl IntoIterator<Item = &'a str>) -> Vec<Message> {
    labels.into_iter().map(message).collect()
}

/// `a00 a01 … ` over as many keys as there are letters.
pub(crate) fn labels(letters: &str, each: usize) -> Vec<String> {
    (0..each).flat_map(|n| letters.chars().map(move |letter| format!("{letter}{n:03}"))).collect()
}

impl<S: FullStoreSubject> Scene<S> {
    pub(crate) async fn publish(&self, messages: Vec<Message>) -> CaseResult {
        let publisher = self.link.publisher().await?;
        for answer in waiting("publish", publisher.publish(messages)).await {
            answer?;
        }
        Ok(())
    }

    pub(crate) fn actor(&self, script: Script) -> Arc<Actor<S>> {
        let (subject, scope) = (Arc::clone(&self.subject), self.name.clone());
        Arc::new(Actor { subject, scope, script, journal: self.journal.clone() })
    }

    /// A handler that does as the script says.
    pub(crate) fn handler(&self, script: Script) -> impl Handler<Message<Raw>, Tx<S>> + use<S> {
        let actor = self.actor(script);
        handler(move |message, tx| {
            let actor = Arc::clone(&actor);
            Box::pin(async move { actor.act(message, tx).await })
        })
    }

    /// An inbox of this consumer, over any store of the subject's transactions, with short waits.
    pub(crate) fn inbox<St>(&self, transport: Arc<dyn Transport>, store: St, script: Script) -> InboxBuilder<St>
    where
        St: FailureStore + InboxStore<Tx = Tx<S>>,
    {
        Inbox::new(self.name.clone(), transport, store)
            .on_any(self.handler(script))
            // A busy machine must not cut the batches that cases put together.
            .max_batch_time(Duration::from_secs(5))
            .backoff(Backoff { first: Duration::from_millis(10), most: Duration::from_millis(50) })
    }

    /// An inbox on a connection of its own.
    pub(crate) async fn connected(&self, script: Script) -> Result<InboxBuilder<Arc<S::Store>>, BoxError> {
        let transport = waiting("a connection", self.link.connect()).await?;
        Ok(self.inbox(transport, Arc::clone(&self.store), script))
    }

    /// Runs an honest inbox until the broker has nothing left.
    pub(crate) async fn finish(&self) -> CaseResult {
        let running = Running::start(self.connected(good()).await?)?;
        self.no_backlog().await?;
        running.stop().await?;
        Ok(())
    }

    pub(crate) async fn no_backlog(&self) -> CaseResult {
        until("the backlog to reach 0", || async { Ok(self.link.backlog().await? == 0) }).await
    }

    pub(crate) async fn effects(&self) -> Result<Vec<String>, BoxError> {
        waiting("the effects", self.subject.effects(&self.name)).await
    }

    pub(crate) async fn until_effects(&self, n: usize) -> CaseResult {
        until(format!("{n} effects"), || async { Ok(self.effects().await?.len() >= n) }).await
    }

    /// Each of these effects is there once, and no other.
    pub(crate) async fn each_once<L: AsRef<str>>(&self, labels: &[L]) -> CaseResult {
        let mut times: BTreeMap<String, i32> = BTreeMap::new();
        for label in labels {
            *times.entry(label.as_ref().to_owned()).or_default() -= 1;
        }
        for effect in self.effects().await? {
            *times.entry(effect).or_default() += 1;
        }
        times.retain(|_, times| *times != 0);
        ensure_eq!(times, BTreeMap::new(), "effects applied too often (+) or not at all (-)");
        Ok(())
    }

    /// Effects of one key were applied in the order of their labels.
    pub(crate) async fn keys_in_order(&self) -> CaseResult {
        let mut by_key: HashMap<char, Vec<String>> = HashMap::new();
        for effect in self.effects().await? {
            by_key.entry(effect.chars().next().unwrap_or_default()).or_default().push(effect);
        }
        for (key, effects) in by_key {
            let mut sorted = effects.clone();
            sorted.sort();
            ensure_eq!(effects, sorted, "the order of the effects of key {key}");
        }
        Ok(())
    }

    pub(crate) async fn failures(&self) -> Result<Vec<FailureRow>, BoxError> {
        Ok(waiting("the failures", self.store.failures(&self.name, 1_000)).await?)
    }

    /// The failures are of these bodies, for these reasons; in no order.
    pub(crate) async fn failures_are(&self, expected: &[(&str, inbox_core::failure_store::Reason)]) -> CaseResult {
        let mut found: Vec<(String, _)> = Vec::new();
        for row in self.failures().await? {
            found.push((row.body.as_deref().map_or_else(|| "no body".to_owned(), label), row.reason));
        }
        let mut expected: Vec<(String, _)> =
            expected.iter().map(|(body, reason)| ((*body).to_owned(), *reason)).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        ensure_eq!(found, expected, "what is kept for a person");
        Ok(())
    }
}

/// An inbox that runs in a task. Dropping it drops the future of `run`.
pub(crate) struct Running {
    pub(crate) handle: InboxHandle,
    stop: CancellationToken,
    task: JoinSet<Result<(), InboxError>>,
}

impl Running {
    pub(crate) fn start<St: FailureStore>(builder: InboxBuilder<St>) -> Result<Self, BoxError> {
        let inbox = builder.build()?;
        let handle = inbox.handle();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let mut task = JoinSet::new();
        task.spawn(async move { inbox.run(stopped.cancelled_owned()).await });
        Ok(Self { handle, stop, task })
    }

    /// Waits for `run` to end by itself.
    pub(crate) async fn ended(mut self) -> Result<Result<(), InboxError>, BoxError> {
        let ended = waiting("run() to end", self.task.join_next()).await.ok_or("run() has ended before")?;
        Ok(ended?)
    }

    /// Shuts down and waits until it is done.
    pub(crate) async fn stop(self) -> CaseResult {
        self.stop.cancel();
        Ok(self.ended().await??)
    }
}

/// A process that can be killed: a runtime of its own, whose tasks stop at whatever await they are.
pub(crate) struct Victim(Option<Runtime>);

impl Victim {
    pub(crate) fn start(life: impl Future<Output = CaseResult> + Send + 'static) -> Result<Self, BoxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        drop(runtime.spawn(life));
        Ok(Self(Some(runtime)))
    }

    /// Starts an instance of the scene's consumer, with connections of its own.
    pub(crate) fn of<S: FullStoreSubject>(scene: &Scene<S>, script: Script) -> Result<Self, BoxError> {
        let scene = scene.clone();
        Self::start(async move {
            let store = scene.subject.open().await?;
            let transport = scene.link.connect().await?;
            let builder = scene.inbox(transport, store, script);
            Ok(builder.run(std::future::pending()).await?)
        })
    }

    /// Kills it and waits until nothing of it runs any more.
    pub(crate) async fn kill(mut self) -> CaseResult {
        if let Some(runtime) = self.0.take() {
            // A thread of its own, because a runtime must not be waited for on another one's worker.
            let dead = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
            waiting("the victim's death", dead).await?;
        }
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
