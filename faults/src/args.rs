//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::outcome::Pair;

/// Faults under load: consumers as processes of their own, real servers, a fault, and what database and broker say
/// afterwards.
///
/// Exit status 0: every round held. 1: one did not, and what was broken. 2: a fault missed, so nothing is proven. 3: an
/// error of the harness or its servers.
#[derive(Clone, Debug, Parser)]
#[command(name = "faults", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// One consumer process.
    #[command(hide = true)]
    Child(ChildArgs),
    /// Writes docs/RELIABILITY.md from the results of all runs since the last `--fresh`.
    Report {
        /// The file.
        file: PathBuf,
    },
    /// One consumer lives through faults for a long time: its memory and connections must not grow.
    Soak(SoakArgs),
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// The broker; when not given, Kafka and the queue in a file. SQS and Pub/Sub are given as to tests:
    /// `cargo xtask services up`, then `. target/services/env.sh`; the harness starts the others itself.
    #[arg(long)]
    pub(crate) broker: Option<Broker>,
    /// The store; every one when not given.
    #[arg(long)]
    pub(crate) store: Option<Store>,
    /// This case only; may be given several times. `--list` shows them.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// How often each case runs.
    #[arg(long, default_value_t = 1)]
    pub(crate) rounds: u32,
    /// How many messages a round has, copies not counted; by default what the case needs.
    #[arg(long)]
    pub(crate) messages: Option<u32>,
    /// How many counted kills a round of the `kill` case has; by default what its size is good for.
    #[arg(long)]
    pub(crate) kills: Option<u32>,
    /// Outages of 3 s instead of 10 or 20, and few messages: for every day.
    #[arg(long)]
    pub(crate) short: bool,
    /// Seed of what happens by chance; drawn and printed when not given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Names the cases and what each does.
    #[arg(long)]
    pub(crate) list: bool,
    /// Forgets the results of earlier runs, which `report` would show.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// A consumer that is wrong on purpose: the run must not hold.
    #[arg(long)]
    pub(crate) saboteur: Option<Saboteur>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SoakArgs {
    /// How long.
    #[arg(long, default_value_t = 30)]
    pub(crate) minutes: u32,
}

/// Brokers. Kafka, RabbitMQ and the queue in a file are the harness's own; the others, which keep everything in memory, are
/// those of `cargo xtask services up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Broker {
    Kafka,
    Sqlite,
    Rabbitmq,
    Redis,
    Sqs,
    Pubsub,
}

impl Broker {
    /// The variable that says where it is, if the harness has none of its own.
    pub(crate) fn variable(self) -> Option<&'static str> {
        match self {
            Self::Kafka | Self::Sqlite | Self::Rabbitmq => None,
            Self::Redis => Some("INBOX_TEST_REDIS"),
            Self::Sqs => Some("INBOX_TEST_SQS"),
            Self::Pubsub => Some("INBOX_TEST_PUBSUB"),
        }
    }

    /// Whether the later messages of a key wait when a consumer dies that holds earlier ones.
    pub(crate) fn keeps_order(self) -> bool {
        matches!(self, Self::Kafka | Self::Sqlite)
    }

    /// How long a delivery is left with a consumer that is silent, where the harness says it to the broker and nothing
    /// else ends it.
    pub(crate) fn lease(self) -> Duration {
        Duration::from_secs(if matches!(self, Self::Redis | Self::Sqs) { 4 } else { 10 })
    }

    /// How long a frozen process stays so: beyond the session, the lease or the heartbeat.
    pub(crate) fn frozen(self) -> Duration {
        Duration::from_secs(match self {
            Self::Sqlite => 6,
            Self::Redis | Self::Sqs => 8,
            Self::Kafka => 12,
            Self::Rabbitmq | Self::Pubsub => 16,
        })
    }
}

/// Stores that the harness can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Postgres,
    Sqlite,
}

/// Consumers that are wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Saboteur {
    /// Acknowledges what it receives before it is processed.
    AckFirst,
    /// Runs effects without claiming.
    NoClaim,
}

impl Saboteur {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AckFirst => "ack-first",
            Self::NoClaim => "no-claim",
        }
    }
}

/// What a consumer process is told.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    pub(crate) transport: String,
    #[arg(long)]
    pub(crate) store: String,
    #[arg(long)]
    pub(crate) instance: String,
    /// How long each handler takes beside its statement, in microseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) handler_us: u64,
    /// The point at which it kills itself.
    #[arg(long)]
    pub(crate) fail_at: Option<String>,
    /// At which time of passing that point.
    #[arg(long, default_value_t = 1)]
    pub(crate) after: u64,
    /// The payment whose handler never ends.
    #[arg(long)]
    pub(crate) stuck: Option<i64>,
    /// Each payment of which this is a divisor takes longer.
    #[arg(long)]
    pub(crate) slow_every: Option<i64>,
    /// By how much, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) slow_ms: u64,
    /// The shutdown timeout, in seconds.
    #[arg(long, default_value_t = 10)]
    pub(crate) shutdown: u64,
    #[arg(long)]
    pub(crate) saboteur: Option<Saboteur>,
}

impl RunArgs {
    /// The pairs of broker and store that are meant.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let pairs = match (self.broker, self.store) {
            (None, None) => vec![(Broker::Kafka, Store::Postgres), (Broker::Sqlite, Store::Sqlite)],
            (
                Some(broker @ (Broker::Kafka | Broker::Rabbitmq | Broker::Redis | Broker::Sqs | Broker::Pubsub)),
                None,
            ) => {
                vec![(broker, Store::Postgres)]
            }
            (Some(Broker::Sqlite), None) => vec![(Broker::Sqlite, Store::Sqlite)],
            (None, Some(Store::Postgres)) => vec![(Broker::Kafka, Store::Postgres)],
            (None, Some(Store::Sqlite)) => vec![(Broker::Sqlite, Store::Sqlite)],
            (Some(broker), Some(store)) => vec![(broker, store)],
        };
        pairs.into_iter().map(|(broker, store)| Pair { broker, store }).collect()
    }

    /// How long an outage is.
    pub(crate) fn outage(&self) -> Duration {
        Duration::from_secs(if self.short { 3 } else { 10 })
    }

    /// How long a connection is a black hole.
    pub(crate) fn black_hole(&self) -> Duration {
        Duration::from_secs(if self.short { 6 } else { 20 })
    }
}
