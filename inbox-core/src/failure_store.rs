//! The store contract, failures: attempts that outlive a process, and messages that are kept because nobody can run
//! them.

use std::{fmt, future::Future, sync::Arc, time::SystemTime};

use bytes::Bytes;

use crate::{
    error::StoreError,
    id::MessageId,
    message::Message,
    store::{Claims, ConsumerId, InboxStore},
    transport::Source,
};

/// What a store remembers of messages that fail.
pub trait FailureStore: InboxStore {
    /// Counts one failed attempt of `failure.id`, in a transaction of its own, and returns how many there are now; `None`
    /// if the id has a claim by now, because somebody else has finished it (S-10).
    ///
    /// # Errors
    /// As any statement. `CommitUnknown` when it may have counted.
    fn record_attempt(
        &self,
        consumer: ConsumerId,
        failure: &Failure,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send;

    /// Ends a `New` id of this transaction without running it to success: writes its failures row (or turns its
    /// `retrying` row into one), with the message's content, and resolves the claim (S-11).
    ///
    /// # Errors
    /// As any statement.
    fn give_up(
        &self,
        tx: &mut Self::Tx,
        claims: &mut Claims,
        failure: &Failure,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps a message whose id's claim is no `New`: an id conflict, or one more copy of a message without an id. Its
    /// row is keyed by consumer, id and fingerprint; if there is one already, its `seen` is raised (S-12).
    ///
    /// # Errors
    /// As any statement.
    fn keep(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        failure: &Failure,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes the `retrying` row of an id that now runs to success, in its transaction.
    ///
    /// # Errors
    /// As any statement.
    fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        id: MessageId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl<S: FailureStore> FailureStore for Arc<S> {
    fn record_attempt(
        &self,
        consumer: ConsumerId,
        failure: &Failure,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send {
        (**self).record_attempt(consumer, failure)
    }
    fn give_up(
        &self,
        tx: &mut Self::Tx,
        claims: &mut Claims,
        failure: &Failure,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).give_up(tx, claims, failure)
    }
    fn keep(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        failure: &Failure,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).keep(tx, consumer, failure)
    }
    fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        consumer: ConsumerId,
        id: MessageId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).forget_attempts(tx, consumer, id)
    }
}

/// A message that failed, with what a person needs to decide about it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The key it is claimed under, or that stands in for one.
    pub id: MessageId,
    /// Four bytes of type and payload.
    pub fingerprint: i32,
    /// Why.
    pub reason: Reason,
    /// The error's text, cleaned and cut (see [`clean`]).
    pub error: String,
    /// The message as it came. Boxed bytes are shared, not copied.
    pub message: Message,
    /// Where it came from.
    pub source: Source,
}

/// Why a message has a failures row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// An attempt failed and more are left.
    Retrying,
    /// Every attempt failed.
    MaxAttempts,
    /// The handler rejected it.
    Rejected,
    /// The message has no usable id.
    MissingId,
    /// The body cannot be decoded into the handler's type.
    Undecodable,
    /// No handler takes its kind.
    Unrouted,
    /// Its id was used before for another content.
    IdConflict,
    /// It met errors of the database again and again, alone, while other messages went through.
    Unstable,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Retrying,
        Self::MaxAttempts,
        Self::Rejected,
        Self::MissingId,
        Self::Undecodable,
        Self::Unrouted,
        Self::IdConflict,
        Self::Unstable,
    ];

    /// The word that stores, metrics and logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::MaxAttempts => "max_attempts",
            Self::Rejected => "rejected",
            Self::MissingId => "missing_id",
            Self::Undecodable => "undecodable",
            Self::Unrouted => "unrouted",
            Self::IdConflict => "id_conflict",
            Self::Unstable => "unstable",
        }
    }

    /// The reason of that word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failures row as it is kept.
#[derive(Clone, Debug)]
pub struct FailureRow {
    /// The key.
    pub id: MessageId,
    /// Why. [`Reason::Retrying`] rows only count attempts; every other row is quarantined.
    pub reason: Reason,
    /// How many attempts failed.
    pub attempts: u32,
    /// How many copies were seen.
    pub seen: u32,
    /// The last error.
    pub error: String,
    /// The id as the producer wrote it.
    pub id_text: Option<Bytes>,
    /// The kind.
    pub kind: Option<String>,
    /// The body; `None` in a `retrying` row, whose message the broker still has.
    pub body: Option<Bytes>,
    /// Topic or queue.
    pub source: Source,
    /// When it failed last.
    pub last_failed_at: SystemTime,
}

/// Error text fit for every database and terminal: no control characters but the line break, at most 4,000 characters.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || *c == '\n').take(4_000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_word_of_its_own() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
    }

    #[test]
    fn error_text_is_cleaned_and_cut() {
        assert_eq!(clean("a\0b\nc\u{1b}[1m"), "ab\nc[1m");
        assert_eq!(clean(&"ä".repeat(5_000)).chars().count(), 4_000);
    }
}
