//! From a record to what is claimed for it and what is done with it. No I/O.

use inbox::{
    Bytes, Candidate, IdScope, Message, MessageId, Source,
    failure_store::{Failure, Reason, clean},
    id::{fingerprint, identify, stand_in},
};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};

/// What the messages of this program say.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
pub(crate) struct Captured {
    pub(crate) payment: String,
    pub(crate) cents: i64,
}

/// What is done when the id is `New`.
pub(crate) enum Work {
    Run(Captured),
    /// It can only be kept for a person, with an error that says why.
    Keep(Reason, String),
}

pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) id: MessageId,
    pub(crate) fingerprint: i32,
    pub(crate) work: Work,
    message: Message,
    source: Source,
}

impl Record {
    /// The id is where your producers put it: here in a header. (rdkafka 0.39 panics at header names that are not UTF-8.)
    pub(crate) fn new(record: &BorrowedMessage<'_>) -> Self {
        let (partition, offset) = (record.partition(), record.offset());
        let mut message = Message::new(Bytes::copy_from_slice(record.payload().unwrap_or_default()));
        if let Some(id) = record.headers().and_then(|headers| headers.iter().find(|header| header.key == "id")?.value) {
            message = message.id(id.to_vec());
        }
        let source = Source::new(record.topic()).coordinates(format!("{partition}/{offset}"));
        let (id, work) = match identify(&message, &source, IdScope::Source) {
            // The stand-in only recognises this record again: nothing is ever run under it.
            Err(missing) => (stand_in(&message, &source), Work::Keep(Reason::MissingId, missing.to_string())),
            Ok(id) => match serde_json::from_slice(&message.body) {
                Ok(captured) => (id, Work::Run(captured)),
                Err(error) => (id, Work::Keep(Reason::Undecodable, error.to_string())),
            },
        };
        Self { partition, offset, id, fingerprint: fingerprint(&message), work, message, source }
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate { id: self.id, fingerprint: self.fingerprint, time: self.id.time() }
    }

    /// What a person needs to decide about it.
    pub(crate) fn failure(&self, id: MessageId, reason: Reason, error: &str) -> Failure {
        let (message, source) = (self.message.clone(), self.source.clone());
        Failure { id, fingerprint: self.fingerprint, reason, error: clean(error), message, source }
    }
}
