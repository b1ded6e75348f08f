//! The cases: what is done to consumers and servers while they work.

mod broker;
mod crash;
mod database;
mod disk;
mod network;
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
    KafkaStop,
    KafkaCrash,
    Partitions,
    Aborted,
    BlackHoleBroker,
    BlackHoleStore,
    GracefulStop,
    StuckHandler,
}

impl Case {
    pub(crate) const ALL: [Self; 25] = [
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
        Self::KafkaStop,
        Self::KafkaCrash,
        Self::Partitions,
        Self::Aborted,
        Self::BlackHoleBroker,
        Self::BlackHoleStore,
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
            Self::KafkaStop => "kafka-stop".into(),
            Self::KafkaCrash => "kafka-crash".into(),
            Self::Partitions => "partitions-added".into(),
            Self::Aborted => "aborted-transactions".into(),
            Self::BlackHoleBroker => "black-hole-broker".into(),
            Self::BlackHoleStore => "black-hole-store".into(),
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
            Self::Zombie => "SIGSTOP beyond session or lease, another instance takes over, SIGCONT",
            Self::PostgresStop => "the database is stopped, and started later",
            Self::PostgresCrash => "the database crashes and comes back at once",
            Self::PostgresTerminate => "backends are terminated one by one under load",
            Self::PostgresReadOnly => "the database becomes a standby, which cannot write, and is promoted later",
            Self::CommitCut => "COMMIT reaches the server and its answer is cut off: it has committed",
            Self::CommitLost => "COMMIT is cut off before it reaches the server: it has not committed",
            Self::DiskFull => "the database's disk is full for a while",
            Self::KafkaStop => "the broker is stopped, and started later",
            Self::KafkaCrash => "the broker is killed and comes back",
            Self::Partitions => "partitions are added to the topic under load",
            Self::Aborted => "half of the producer's transactions are aborted: holes in the offsets",
            Self::BlackHoleBroker => "what goes to and from the broker is held back, and nobody is told",
            Self::BlackHoleStore => "what goes to and from the database is held back, and nobody is told",
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
            Self::Kill | Self::KillAt(_) | Self::Members | Self::Zombie | Self::StuckHandler => true,
            // The database's disk, whatever the broker; and what a broker hands over ahead comes again after a stop.
            Self::DiskFull | Self::GracefulStop => pair.broker.variable().is_none(),
            Self::PostgresStop
            | Self::PostgresCrash
            | Self::PostgresTerminate
            | Self::PostgresReadOnly
            | Self::CommitCut
            | Self::CommitLost
            | Self::BlackHoleStore => pair.store == Store::Postgres,
            Self::KafkaStop | Self::KafkaCrash | Self::Partitions | Self::Aborted | Self::BlackHoleBroker => {
                pair.broker == Broker::Kafka
            }
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
            Self::KafkaStop => broker::stop(context).await,
            Self::KafkaCrash => broker::crash(context).await,
            Self::Partitions => broker::partitions(context).await,
            Self::Aborted => broker::aborted(context).await,
            Self::BlackHoleBroker => network::black_hole(context, true).await,
            Self::BlackHoleStore => network::black_hole(context, false).await,
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
