//! The command line.

use clap::{Parser, ValueEnum};

/// The headline test: a payments pipeline in which everything crashes, and what its database says afterwards.
///
/// Exit status 0: every invariant holds. 1: one is broken, and which. 2: the run proves nothing.
#[derive(Clone, Debug, Parser)]
#[command(name = "chaos")]
pub(crate) struct Args {
    /// How many payments are made; each has two events.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) payments: u32,
    /// Seed of everything that happens by chance; drawn, and printed, if it is not given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The broker: `sqlite:FILE` or `kafka://host:port`; the topic is made. Default: a file in a temporary folder.
    #[arg(long)]
    pub(crate) transport: Option<String>,
    /// The database: `sqlite:FILE` or `postgres://…`, behind PgBouncer with `?pooler=transaction`. Default: a file in a
    /// temporary folder.
    #[arg(long)]
    pub(crate) store: Option<String>,
    /// The negative control: the same pipeline, but consumers do not claim.
    #[arg(long)]
    pub(crate) no_inbox: bool,
    /// Relays and consumers are processes of their own, and crash by abort.
    #[arg(long)]
    pub(crate) processes: bool,
    /// What a child process is. Used by `--processes`.
    #[arg(long, hide = true)]
    pub(crate) role: Option<Role>,
    /// Which run a child process belongs to. Used by `--processes`.
    #[arg(long, hide = true)]
    pub(crate) run: Option<String>,
}

/// The parts of the pipeline that crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Role {
    /// Publishes one half of the outbox.
    RelayEven,
    /// Publishes the other half.
    RelayOdd,
    /// Sends a receipt for each captured payment.
    Notifier,
    /// Keeps the latest status of each payment.
    Projection,
}

impl Role {
    pub(crate) const ALL: [Self; 4] = [Self::RelayEven, Self::RelayOdd, Self::Notifier, Self::Projection];

    /// The name on the command line, which is the consumer's too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RelayEven => "relay-even",
            Self::RelayOdd => "relay-odd",
            Self::Notifier => "notifier",
            Self::Projection => "projection",
        }
    }

    pub(crate) fn is_consumer(self) -> bool {
        match self {
            Self::RelayEven | Self::RelayOdd => false,
            Self::Notifier | Self::Projection => true,
        }
    }
}
