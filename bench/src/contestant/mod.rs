//! The contestants: what each does with every message of a topic or queue.
//!
//! All that write do the same work for a message: decode it, claim its id in `inbox.claims`, insert one row into
//! `receipts`. They differ in who does it and how many messages share a transaction.

mod batch;
mod clock;
mod consume;
mod hand;
mod kafka;
mod offsets;
mod ours;
mod pubsub;
mod rabbitmq;
mod receipts;
mod sqs;

use std::io;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use self::clock::Clock;
use crate::{
    address::Address,
    processes::{Servers, Usage},
};

/// How many transactions `ours` runs at once: the default of `InboxBuilder::lanes`.
pub(crate) const LANES: usize = 4;
/// How many messages share a transaction at most: the default of `InboxBuilder::max_batch`.
pub(crate) const BATCH: usize = 200;
/// How many bytes `ours` holds in flight at most: the default of `InboxBuilder::in_flight_bytes`.
pub(crate) const IN_FLIGHT_BYTES: u64 = 64 << 20;
/// How many messages may wait between the poll and the lanes: the default of `InboxBuilder::in_flight`.
const WAITING: usize = 2_000;

/// Who consumes the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Contestant {
    /// Polls, and that is all.
    Raw,
    /// A hand-written loop, one transaction a message, one at a time.
    #[value(name = "hand-1")]
    Hand1,
    /// The same with sixteen transactions at a time.
    #[value(name = "hand-16")]
    Hand16,
    /// A hand-written loop, one transaction for what was polled, one at a time.
    #[value(name = "batch-1")]
    Batch1,
    /// The same with as many transactions at a time as `ours`.
    #[value(name = "batch-4")]
    Batch4,
    /// The inbox with one lane on one connection.
    #[value(name = "ours-1")]
    Ours1,
    /// The inbox at its defaults.
    Ours,
    /// A hand-written loop that does not claim: the proof must catch it.
    #[value(hide = true)]
    Unclaimed,
}

impl Contestant {
    /// Those that are compared.
    pub(crate) const ALL: [Self; 7] =
        [Self::Raw, Self::Hand1, Self::Hand16, Self::Batch1, Self::Batch4, Self::Ours1, Self::Ours];

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it leaves receipts and claims.
    pub(crate) fn writes(self) -> bool {
        self != Self::Raw
    }

    /// What the report says of it.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Raw => {
                "`BaseConsumer::poll` of every record with librdkafka's defaults; looks at the body's length. No \
                 database: the ceiling of anything that reads this topic."
            }
            Self::Hand1 => {
                "A careful loop: BEGIN, claim, `INSERT INTO receipts`, COMMIT for each message, prepared statements on \
                 one connection of sqlx. An offset is stored after its COMMIT."
            }
            Self::Hand16 => {
                "The same on sixteen connections: the account's hash picks one of sixteen tasks, so the order within \
                 an account is kept; an offset is stored when all below it in its partition are committed."
            }
            Self::Batch1 => {
                "An ideal loop for this one topic: what waits, up to 200 messages, shares a transaction: one claim for \
                 all, the same `INSERT` for each new one, one COMMIT, then the offsets. One connection. No retries, no \
                 isolation of failures, no rebalancing, nothing that a service needs."
            }
            Self::Batch4 => "The same with four tasks on four connections, chosen by the account's hash.",
            Self::Ours1 => {
                "The inbox through its facade, `.lanes(1)` and a store of one connection; everything else is default."
            }
            Self::Ours => "The inbox through its facade, no setting changed: four lanes, up to 200 messages a batch.",
            Self::Unclaimed => "A loop that does not claim, which the proof must catch.",
        }
    }
}

/// What a contestant is to do; comes by its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Who it is.
    pub(crate) contestant: Contestant,
    /// Where the messages are.
    pub(crate) address: Address,
    /// The database's URL.
    pub(crate) database: String,
    /// How many records are there.
    pub(crate) records: usize,
    /// Whose processor time counts besides its own.
    pub(crate) servers: Servers,
    /// Whether to say each second how things stand.
    pub(crate) watched: bool,
}

/// A line that a contestant prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// It is connected, and has not received yet; its resident memory in bytes.
    Idle(u64),
    /// How things stand.
    Sample(Sample),
    /// It is done.
    Measured(Measured),
}

/// How things stand.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Since the first message.
    pub(crate) seconds: f64,
    /// Resident memory in bytes.
    pub(crate) resident: u64,
    /// How many deliveries are held.
    pub(crate) in_flight: u64,
}

/// What a contestant measured, from the first record received to the last one committed and acknowledged.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// How long it took.
    pub(crate) seconds: f64,
    /// How many transactions were committed.
    pub(crate) transactions: u64,
    /// Seconds of processor time.
    pub(crate) usage: Usage,
    /// The most resident memory that the process ever had, in bytes.
    pub(crate) peak: u64,
}

/// Reads a job, does it, and prints what was measured.
pub(crate) async fn run() -> Result<()> {
    let job: Job = serde_json::from_reader(io::stdin()).context("the job cannot be read")?;
    let clock = Clock::new(job.servers);
    let transactions = match job.contestant {
        Contestant::Raw => kafka::raw(&job, &clock).await?,
        Contestant::Hand1 => hand::run(&job, &clock, 1, true).await?,
        Contestant::Hand16 => hand::run(&job, &clock, 16, true).await?,
        Contestant::Batch1 => batch::run(&job, &clock, 1).await?,
        Contestant::Batch4 => batch::run(&job, &clock, LANES).await?,
        Contestant::Ours1 => ours::run(&job, &clock, Some(1)).await?,
        Contestant::Ours => ours::run(&job, &clock, None).await?,
        Contestant::Unclaimed => hand::run(&job, &clock, 1, false).await?,
    };
    say(&Line::Measured(clock.measured(transactions)?))
}

/// Prints a line for the process that gave the job.
fn say(line: &Line) -> Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}
