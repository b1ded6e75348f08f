//! A consumer process. It says on its standard output what it receives and settles, one line each, so that whoever kills
//! it knows whether work was in flight.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use inbox::{
    Handler, HandlerError, Inbox, InboxBuilder, Message, Transport,
    failure_store::FailureStore,
    postgres::{PgConfig, PgInboxStore, PgTransaction, sqlx},
    sqlite::{SqliteInboxStore, SqliteTransaction},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::{ChildArgs, Saboteur, Store},
    load::Payment,
    watched::{Watched, say},
    world,
};

/// The name under which all instances claim.
pub(crate) const CONSUMER: &str = "faults";
/// The kind of every message.
pub(crate) const KIND: &str = "payment.captured";

/// Lives until it is told to stop, or killed.
pub(crate) async fn live(args: &ChildArgs) -> anyhow::Result<()> {
    arm(args)?;
    match world::store_of(&args.store)? {
        Store::Postgres => {
            let store = PgConfig::url(&args.store)?.migrate_on_start(true).open()?;
            consume::<PgInboxStore>(args, store).await
        }
        Store::Sqlite => {
            let store =
                SqliteInboxStore::builder(&args.store)?.busy_timeout(Duration::from_secs(60)).migrate_on_start(true);
            consume::<SqliteInboxStore>(args, store.open().await?).await
        }
    }
}

/// Makes the process kill itself when it passes a point for the given time.
fn arm(args: &ChildArgs) -> anyhow::Result<()> {
    let Some(point) = &args.fail_at else { return Ok(()) };
    let (passed, after) = (AtomicU64::new(0), args.after);
    let strike = move || {
        if passed.fetch_add(1, Ordering::SeqCst) + 1 >= after {
            // As an operator or the kernel would: nothing is cleaned up.
            if let Err(error) = kill(Pid::this(), Signal::SIGKILL) {
                eprintln!("the process cannot kill itself: {error}");
            }
        }
    };
    fail::cfg_callback(point, strike).map_err(|error| anyhow::anyhow!("the point {point}: {error}"))
}

/// The handler: one effect a message, and a count of the calls.
struct Effect {
    instance: String,
    pause: Duration,
    stuck: Option<i64>,
    /// A divisor, and how much longer its payments take.
    slow: Option<(i64, Duration)>,
    calls: Arc<AtomicU64>,
}

impl Effect {
    async fn before(&self, payment: i64) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.stuck == Some(payment) {
            say("stuck");
            std::future::pending::<()>().await;
        }
        if let Some((every, longer)) = self.slow
            && payment.checked_rem(every) == Some(0)
        {
            tokio::time::sleep(longer).await;
        }
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
    }
}

macro_rules! effect {
    ($tx:ident) => {
        impl Handler<Message<Payment>, $tx<'static>> for Effect {
            async fn handle<'a>(
                &'a self,
                message: Message<Payment>,
                tx: &'a mut $tx<'static>,
            ) -> Result<(), HandlerError> {
                self.before(message.body.payment).await;
                sqlx::query(
                    "INSERT INTO effects (payment, account, place, id, instance, attempt) VALUES ($1, $2, $3, $4, $5, $6)",
                )
                .bind(message.body.payment)
                .bind(&message.body.account)
                .bind(message.body.place)
                .bind(message.message_id().as_uuid())
                .bind(&self.instance)
                .bind(i64::from(message.attempt()))
                .execute(&mut **tx)
                .await?;
                Ok(())
            }
        }
    };
}
effect!(PgTransaction);
effect!(SqliteTransaction);

/// A store whose transactions the handler knows.
trait Books: FailureStore + Sized {
    fn handle(inbox: InboxBuilder<Self>, effect: Effect) -> InboxBuilder<Self>;
}

impl Books for PgInboxStore {
    fn handle(inbox: InboxBuilder<Self>, effect: Effect) -> InboxBuilder<Self> {
        inbox.on(KIND, effect)
    }
}

impl Books for SqliteInboxStore {
    fn handle(inbox: InboxBuilder<Self>, effect: Effect) -> InboxBuilder<Self> {
        inbox.on(KIND, effect)
    }
}

async fn consume<S: Books>(args: &ChildArgs, store: S) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let calls = Arc::new(AtomicU64::new(0));
    // A server that is away at the start is waited for, as a supervisor that starts the process again would.
    let transport = loop {
        match inbox::connect(&args.transport).await {
            Ok(transport) => break transport,
            Err(error) if error.kind() == inbox::TransportErrorKind::Unavailable => {
                eprintln!("{}: {}", args.instance, inbox::report(&error));
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error).context("connect"),
        }
    };
    let ack_first = args.saboteur == Some(Saboteur::AckFirst);
    let transport = Arc::new(Watched::new(transport, Arc::clone(&calls), ack_first));
    let effect = Effect {
        instance: args.instance.clone(),
        pause: Duration::from_micros(args.handler_us),
        stuck: args.stuck,
        slow: args.slow_every.map(|every| (every, Duration::from_millis(args.slow_ms))),
        calls: Arc::clone(&calls),
    };
    say("ready");
    if args.saboteur == Some(Saboteur::NoClaim) {
        return tokio::select! {
            done = consume_bare(args, &*transport, effect) => done,
            _ = terminated.recv() => Ok(()),
        };
    }
    let inbox = Inbox::new(CONSUMER, transport, store)
        // Short transactions, so that there are many places at which a fault can hit.
        .max_batch(50)
        .in_flight(400)
        // A handler that is stuck is the shutdown's business here.
        .handler_timeout(Duration::from_secs(600))
        .start_timeout(Duration::from_secs(120))
        .shutdown_timeout(Duration::from_secs(args.shutdown));
    let inbox = S::handle(inbox, effect).build()?;
    inbox
        .run(async {
            terminated.recv().await;
        })
        .await?;
    say(&format!("end {}", calls.load(Ordering::SeqCst)));
    Ok(())
}

/// The saboteur: the same loop without an inbox.
async fn consume_bare(args: &ChildArgs, transport: &dyn Transport, effect: Effect) -> anyhow::Result<()> {
    if world::store_of(&args.store)? != Store::Postgres {
        bail!("the saboteur `no-claim` is there for PostgreSQL only");
    }
    let pool = sqlx::PgPool::connect(&args.store).await?;
    loop {
        let deliveries = transport.receive(inbox::Capacity { messages: 50, bytes: 1 << 20 }).await?;
        let mut tx = pool.begin().await?;
        let mut receipts = Vec::new();
        for delivery in deliveries {
            let id = inbox::id::identify(&delivery.message, &delivery.source, inbox::id::IdScope::Global)
                .map_err(|missing| anyhow::anyhow!("{missing}"))?;
            let payment: Payment = serde_json::from_slice(&delivery.message.body)?;
            effect.before(payment.payment).await;
            sqlx::query(
                "INSERT INTO effects (payment, account, place, id, instance, attempt) VALUES ($1, $2, $3, $4, $5, 1)",
            )
            .bind(payment.payment)
            .bind(payment.account)
            .bind(payment.place)
            .bind(id.as_uuid())
            .bind(&effect.instance)
            .execute(&mut *tx)
            .await?;
            receipts.push(delivery.receipt);
        }
        tx.commit().await?;
        drop(transport.ack(receipts).await);
        std::io::stdout().flush()?;
    }
}
