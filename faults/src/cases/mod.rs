//! The cases: what is done to consumers and servers while they work.

mod broker;
mod crash;
mod database;
mod disk;
mod network;
mod queue;
mod rabbitmq;
mod stopping;

use crate::{
    args::{Broker, Store},
    outcome::{Outcome, Pair},
    stage::Context,
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Kill,
    KillAt(char),
    Members,
    Zombie,
    PostgresStop,
    PostgresCrash,
    PostgresTerminate,
    PostgresReadOnly,
    CommitCut,
    CommitLost,
    DiskFull,
    BrokerStop,
    BrokerCrash,
    ConnectionsClosed,
    ChannelClosed,
    QueueRemade,
    Partitions,
    Aborted,
    ConnectionsCut,
    BlackHoleBroker,
    BlackHoleStore,
    LeaseOut,
    SameBatch,
    GracefulStop,
    StuckHandler,
}

impl Case {
    pub(crate) const ALL: [Self; 31] = [
        Self::Kill,
        Self::KillAt('a'),
        Self::KillAt('b'),
        Self::KillAt('c'),
        Self::KillAt('d'),
        Self::KillAt('e'),
        Self::KillAt('f'),
        Self::KillAt('g'),
        Self::Members,
        Self::Zombie,
        Self::PostgresStop,
        Self::PostgresCrash,
        Self::PostgresTerminate,
        Self::PostgresReadOnly,
        Self::CommitCut,
        Self::CommitLost,
        Self::DiskFull,
        Self::BrokerStop,
        Self::BrokerCrash,
        Self::ConnectionsClosed,
        Self::ChannelClosed,
        Self::QueueRemade,
        Self::Partitions,
        Self::Aborted,
        Self::ConnectionsCut,
        Self::BlackHoleBroker,
        Self::BlackHoleStore,
        Self::LeaseOut,
        Self::SameBatch,
        Self::GracefulStop,
        Self::StuckHandler,
    ];

    /// The name that `--case` takes.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Kill => "kill".into(),
            Self::KillAt(point) => format!("kill-at-{point}"),
            Self::Members => "members".into(),
            Self::Zombie => "zombie".into(),
            Self::PostgresStop => "postgres-stop".into(),
            Self::PostgresCrash => "postgres-crash".into(),
            Self::PostgresTerminate => "postgres-terminate".into(),
            Self::PostgresReadOnly => "postgres-read-only".into(),
            Self::CommitCut => "commit-cut".into(),
            Self::CommitLost => "commit-lost".into(),
            Self::DiskFull => "disk-full".into(),
            Self::BrokerStop => "broker-stop".into(),
            Self::BrokerCrash => "broker-crash".into(),
            Self::ConnectionsClosed => "connections-closed".into(),
            Self::ChannelClosed => "channel-closed".into(),
            Self::QueueRemade => "queue-remade".into(),
            Self::Partitions => "partitions-added".into(),
            Self::Aborted => "aborted-transactions".into(),
            Self::ConnectionsCut => "connections-cut".into(),
            Self::BlackHoleBroker => "black-hole-broker".into(),
            Self::BlackHoleStore => "black-hole-store".into(),
            Self::LeaseOut => "lease-out".into(),
            Self::SameBatch => "same-batch".into(),
            Self::GracefulStop => "graceful-stop".into(),
            Self::StuckHandler => "stuck-handler".into(),
        }
    }

    /// What is done, and what one counted fault is.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Kill => {
                "two instances, killed by SIGKILL at random; counted when the process had deliveries in flight"
            }
            Self::KillAt('a') => "SIGKILL after receive, before the id is looked at",
            Self::KillAt('b') => "SIGKILL with the id known, before BEGIN",
            Self::KillAt('c') => "SIGKILL after the claim, before the handler",
            Self::KillAt('d') => "SIGKILL after the handlers, before our last statement",
            Self::KillAt('e') => "SIGKILL after our last statement, before COMMIT",
            Self::KillAt('f') => "SIGKILL after COMMIT, before the acknowledgement",
            Self::KillAt(_) => "SIGKILL after the acknowledgement",
            Self::Members => "instances join and leave under load; counted: each change",
            Self::Zombie => {
                "SIGSTOP beyond session or lease of a process with deliveries in flight, another instance takes over, \
                 SIGCONT"
            }
            Self::PostgresStop => "the database is stopped, and started later",
            Self::PostgresCrash => "the database crashes and comes back at once",
            Self::PostgresTerminate => "backends are terminated one by one under load",
            Self::PostgresReadOnly => "the database becomes a standby, which cannot write, and is promoted later",
            Self::CommitCut => "COMMIT reaches the server and its answer is cut off: it has committed",
            Self::CommitLost => "COMMIT is cut off before it reaches the server: it has not committed",
            Self::DiskFull => "the database's disk is full for a while",
            Self::BrokerStop => "the broker is stopped, and started later",
            Self::BrokerCrash => "the broker is killed and comes back",
            Self::ConnectionsClosed => "the broker closes all connections again and again, as an operator tells it to",
            Self::ChannelClosed => {
                "handlers take longer than the broker's `consumer_timeout`: it closes the channel in the middle of them"
            }
            Self::QueueRemade => {
                "the queue is deleted with work in flight and made again while the producer goes on: what went with it \
                 was there before, and is published again under the same ids"
            }
            Self::Partitions => "partitions are added to the topic under load",
            Self::Aborted => "half of the producer's transactions are aborted: holes in the offsets",
            Self::ConnectionsCut => "all connections to the broker are cut on their way, again and again",
            Self::BlackHoleBroker => "what goes to and from the broker is held back, and nobody is told",
            Self::BlackHoleStore => "what goes to and from the database is held back, and nobody is told",
            Self::LeaseOut => {
                "what extends leases is held back: they end in the middle of handlers, another instance is handed their \
                 messages, and the first one acknowledges late"
            }
            Self::SameBatch => "every message is published twice in a row; counted: copies that came in one receive",
            Self::GracefulStop => {
                "all instances are stopped under load and started again: nothing runs twice or comes again"
            }
            Self::StuckHandler => {
                "a handler never ends: the process stops at its deadline, another one runs the message"
            }
        }
    }

    /// Whether it can be done to this pair.
    pub(crate) fn fits(self, pair: Pair) -> bool {
        match self {
            Self::Kill | Self::KillAt(_) | Self::Members | Self::Zombie | Self::SameBatch | Self::StuckHandler => true,
            // The database's disk, whatever the broker; and what a broker hands over ahead comes again after a stop.
            Self::DiskFull | Self::GracefulStop => matches!(pair.broker, Broker::Kafka | Broker::Sqlite),
            Self::PostgresStop
            | Self::PostgresCrash
            | Self::PostgresTerminate
            | Self::PostgresReadOnly
            | Self::CommitCut
            | Self::CommitLost
            | Self::BlackHoleStore => pair.store == Store::Postgres,
            // The stand-ins of SQS and Pub/Sub keep everything in memory: a restart would lose it, and be theirs.
            Self::BrokerStop | Self::BrokerCrash => matches!(pair.broker, Broker::Kafka | Broker::Rabbitmq),
            Self::ConnectionsClosed | Self::ChannelClosed => pair.broker == Broker::Rabbitmq,
            // Of Kafka, `black-hole-broker` and the broker's own crash say the same as a cut.
            Self::ConnectionsCut => !matches!(pair.broker, Broker::Kafka | Broker::Sqlite),
            Self::QueueRemade => matches!(pair.broker, Broker::Rabbitmq | Broker::Sqs | Broker::Pubsub),
            Self::Partitions | Self::Aborted => pair.broker == Broker::Kafka,
            Self::BlackHoleBroker => pair.broker != Broker::Sqlite,
            // Nothing extends a lease of the others but that the process lives.
            Self::LeaseOut => matches!(pair.broker, Broker::Redis | Broker::Sqs | Broker::Pubsub),
        }
    }

    /// One round.
    pub(crate) async fn run(self, context: &mut Context) -> anyhow::Result<Outcome> {
        match self {
            Self::Kill => crash::kill(context).await,
            Self::KillAt(point) => crash::kill_at(context, point).await,
            Self::Members => crash::members(context).await,
            Self::Zombie => crash::zombie(context).await,
            Self::PostgresStop => database::stop(context).await,
            Self::PostgresCrash => database::crash(context).await,
            Self::PostgresTerminate => database::terminate(context).await,
            Self::PostgresReadOnly => database::read_only(context).await,
            Self::CommitCut => network::commits(context, true).await,
            Self::CommitLost => network::commits(context, false).await,
            Self::DiskFull => disk::full(context).await,
            Self::BrokerStop => broker::stop(context).await,
            Self::BrokerCrash => broker::crash(context).await,
            Self::ConnectionsClosed => rabbitmq::connections(context).await,
            Self::ChannelClosed => rabbitmq::channel(context).await,
            Self::QueueRemade => queue::remade(context).await,
            Self::Partitions => broker::partitions(context).await,
            Self::Aborted => broker::aborted(context).await,
            Self::ConnectionsCut => network::cut(context).await,
            Self::BlackHoleBroker => network::black_hole(context, true).await,
            Self::BlackHoleStore => network::black_hole(context, false).await,
            Self::LeaseOut => network::lease_out(context).await,
            Self::SameBatch => queue::same_batch(context).await,
            Self::GracefulStop => stopping::graceful(context).await,
            Self::StuckHandler => stopping::stuck(context).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_differ() {
        let names: HashSet<String> = Case::ALL.iter().map(|case| case.name()).collect();
        assert_eq!(names.len(), Case::ALL.len());
    }
}
