//! From what a producer wrote to the key that is claimed. Pure.
//!
//! - UUID text is one id in every spelling (hyphens or not, upper case, braces, `urn:uuid:`) and is used as it is, so
//!   that the time inside a UUIDv7 stays readable.
//! - Any other text is hashed together with its scope: "1, 2, 3" of two topics are not the same messages.
//! - Nothing, white space, the nil and the max UUID are *missing*: a key that many messages would share is never made.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{message::Message, transport::Source};

/// The de-duplication key: 128 bits, from the producer's id.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct MessageId(Uuid);

impl MessageId {
    /// Takes a UUID as it is.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The UUID that is stored.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }

    /// The time inside a UUIDv7, whatever the clock says now; `None` for every other id.
    #[must_use]
    pub fn time(self) -> Option<SystemTime> {
        if self.0.get_version_num() != 7 {
            return None;
        }
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({})", self.0)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Within what an id that is not a UUID is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdScope {
    /// The producer's `source` (CloudEvents) if there is one, else the topic or queue.
    #[default]
    Source,
    /// Everything that this consumer reads: the producers promise never to use one text for two messages.
    Global,
}

/// Why a message has no id that could be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingId {
    /// The broker carried none.
    Absent,
    /// Empty, or nothing but white space.
    Empty,
    /// The nil UUID: what a forgotten initialisation writes.
    Nil,
    /// The max UUID.
    Max,
}

impl fmt::Display for MissingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "the message carries no id",
            Self::Empty => "the message's id is empty",
            Self::Nil => "the message's id is the nil UUID",
            Self::Max => "the message's id is the max UUID",
        })
    }
}

/// The key under which `message` from `source` is claimed.
///
/// # Errors
/// A [`MissingId`] when the producer gave nothing that could tell this message from another.
pub fn identify(message: &Message, source: &Source, scope: IdScope) -> Result<MessageId, MissingId> {
    let text = message.id.as_ref().ok_or(MissingId::Absent)?.as_bytes();
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(MissingId::Empty);
    }
    if let Some(uuid) = std::str::from_utf8(text).ok().and_then(|text| Uuid::try_parse(text.trim_ascii()).ok()) {
        return match uuid {
            uuid if uuid.is_nil() => Err(MissingId::Nil),
            uuid if uuid.is_max() => Err(MissingId::Max),
            uuid => Ok(MessageId(uuid)),
        };
    }
    let scope = match scope {
        IdScope::Source => message.origin.as_deref().unwrap_or(&source.name),
        IdScope::Global => "",
    };
    Ok(hashed(b"id", &[scope.as_bytes(), text]))
}

/// A key for a message that carries none, by which a redelivery of it is recognised: never used to run a handler, only
/// to keep one failures row a message.
#[must_use]
pub fn stand_in(message: &Message, source: &Source) -> MessageId {
    let kind = message.kind.as_deref().unwrap_or_default();
    let coordinates = source.coordinates.as_deref().unwrap_or_default();
    let stored = message.stored_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    hashed(
        b"stand-in",
        &[
            source.name.as_bytes(),
            coordinates.as_bytes(),
            &stored.as_nanos().to_be_bytes(),
            kind.as_bytes(),
            &message.body,
        ],
    )
}

/// The id under which the second content of a conflicting id is kept: from both the id and the fingerprint.
#[must_use]
pub fn of_conflict(id: MessageId, fingerprint: i32) -> MessageId {
    hashed(b"conflict", &[id.0.as_bytes(), &fingerprint.to_be_bytes()])
}

/// Four bytes of type and payload, stored beside the claim: a duplicate with another fingerprint is another message
/// under a used id. CRC-32, because it guards against accidents, not against forgers.
#[must_use]
pub fn fingerprint(message: &Message) -> i32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(message.kind.as_deref().unwrap_or_default().as_bytes());
    hasher.update(&[0]);
    hasher.update(&message.body);
    i32::from_be_bytes(hasher.finalize().to_be_bytes())
}

/// SHA-256 of length-prefixed parts, as a UUIDv8. The domain keeps the kinds of keys apart.
fn hashed(domain: &[u8], parts: &[&[u8]]) -> MessageId {
    let mut hasher = Sha256::new();
    for part in std::iter::once(&domain).chain(parts) {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    MessageId(Uuid::new_v8(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id_of(text: &[u8], topic: &str, scope: IdScope) -> Result<MessageId, MissingId> {
        let message = Message::new(bytes::Bytes::new()).id(text.to_vec());
        identify(&message, &Source::new(topic), scope)
    }

    #[test]
    fn every_spelling_of_a_uuid_is_one_id() {
        let plain = id_of(b"01890a5d-ac96-774b-bcce-b302099a8057", "a", IdScope::Source);
        for spelling in [
            "01890A5D-AC96-774B-BCCE-B302099A8057",
            "01890a5dac96774bbcceb302099a8057",
            "{01890a5d-ac96-774b-bcce-b302099a8057}",
            "urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057",
            " 01890a5d-ac96-774b-bcce-b302099a8057\n",
        ] {
            assert_eq!(id_of(spelling.as_bytes(), "another topic", IdScope::Source), plain, "{spelling}");
        }
        assert!(plain.is_ok_and(|id| id.time().is_some()));
    }

    #[test]
    fn what_is_missing() {
        let none = Message::new(bytes::Bytes::new());
        assert_eq!(identify(&none, &Source::new("a"), IdScope::Source), Err(MissingId::Absent));
        assert_eq!(id_of(b"", "a", IdScope::Global), Err(MissingId::Empty));
        assert_eq!(id_of(b" \t", "a", IdScope::Global), Err(MissingId::Empty));
        assert_eq!(id_of(b"00000000-0000-0000-0000-000000000000", "a", IdScope::Global), Err(MissingId::Nil));
        assert_eq!(id_of(b"FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF", "a", IdScope::Global), Err(MissingId::Max));
    }

    #[test]
    fn text_is_scoped_by_its_source() {
        assert_ne!(id_of(b"1", "a", IdScope::Source), id_of(b"1", "b", IdScope::Source));
        assert_eq!(id_of(b"1", "a", IdScope::Global), id_of(b"1", "b", IdScope::Global));
        let mut message = Message::new(bytes::Bytes::new()).id("1");
        message.origin = Some("shop".into());
        assert_eq!(
            identify(&message, &Source::new("a"), IdScope::Source),
            identify(&message, &Source::new("b"), IdScope::Source)
        );
    }

    proptest! {
        #[test]
        fn different_texts_are_different_ids(a in prop::collection::vec(any::<u8>(), 1..64), b in prop::collection::vec(any::<u8>(), 1..64)) {
            prop_assume!(a != b);
            if let (Ok(a), Ok(b)) = (id_of(&a, "t", IdScope::Source), id_of(&b, "t", IdScope::Source)) {
                prop_assert_ne!(a, b);
            }
        }

        #[test]
        fn an_id_does_not_depend_on_the_clock_or_the_call(text in prop::collection::vec(any::<u8>(), 0..12_000)) {
            prop_assert_eq!(id_of(&text, "t", IdScope::Source), id_of(&text, "t", IdScope::Source));
        }
    }
}
