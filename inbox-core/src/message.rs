//! What a producer sends: immutable content. Pure data, no I/O.

use std::{borrow::Cow, fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;

use crate::{id::MessageId, transport::Source};

/// The id as the producer wrote it: any bytes, most often UUID text.
///
/// What is claimed in the database is the [`MessageId`] that [`identify`](crate::id::identify) makes of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdText(Bytes);

impl IdText {
    /// Wraps the bytes of an id; nothing is checked here.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes as they came.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The id for people: invalid UTF-8 replaced, control characters escaped, cut after 64 characters.
    #[must_use]
    pub fn display(&self) -> String {
        printable(&self.0, 64)
    }
}

impl fmt::Debug for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdText({})", self.display())
    }
}

/// Bytes for people: invalid UTF-8 replaced, control characters escaped, cut after `most` characters.
#[must_use]
pub fn printable(bytes: &[u8], most: usize) -> String {
    let text: Cow<'_, str> = String::from_utf8_lossy(&bytes[..bytes.len().min(most * 4)]);
    let mut shown: String = text
        .chars()
        .take(most)
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect();
    if text.chars().count() > most || bytes.len() > most * 4 {
        shown.push('…');
    }
    shown
}

/// Headers in the order in which they came. Names may repeat; values are bytes. Clones share them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Arc<Vec<(String, Bytes)>>);

impl Headers {
    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The first value of `name`, compared without regard to ASCII case (brokers differ in what they keep).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The first value of `name` if it is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Adds a header behind the others.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        Arc::make_mut(&mut self.0).push((name.into(), value.into()));
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many headers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that names and values take together.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: values may be credentials of the user's own.
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl FromIterator<(String, Bytes)> for Headers {
    fn from_iter<I: IntoIterator<Item = (String, Bytes)>>(headers: I) -> Self {
        Self(Arc::new(headers.into_iter().collect()))
    }
}

/// An immutable message: what a producer publishes, what a transport hands over, and, as `Message<E>`, what a handler
/// gets when it wants more than the decoded body.
///
/// `Debug` shows sizes, not contents: bodies and header values may be confidential.
#[derive(Clone)]
pub struct Message<E = Bytes> {
    /// The de-duplication id as the producer wrote it; `None` when the broker carried none.
    pub id: Option<IdText>,
    /// The name of the message's type (`payment.captured`), by which handlers are chosen.
    pub kind: Option<String>,
    /// The ordering key: messages with equal keys run in the order in which the broker hands them over.
    pub key: Option<Bytes>,
    /// What the producer put beside the body.
    pub headers: Headers,
    /// The scope of the id when the producer names one (the `source` of CloudEvents).
    pub origin: Option<String>,
    /// When the producer says that the message was made.
    pub produced_at: Option<SystemTime>,
    /// When the broker says that it stored the message.
    pub stored_at: Option<SystemTime>,
    /// The content.
    pub body: E,
    pub(crate) context: Context,
}

/// What the inbox knows about the delivery that a handler is running for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    pub(crate) message_id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) source: Source,
}

impl<E> Message<E> {
    /// A message with a body and nothing else.
    #[must_use]
    pub fn new(body: E) -> Self {
        Self {
            id: None,
            kind: None,
            key: None,
            headers: Headers::new(),
            origin: None,
            produced_at: None,
            stored_at: None,
            body,
            context: Context::default(),
        }
    }

    /// Sets the id; UUIDv7 text is recommended.
    #[must_use]
    pub fn id(mut self, id: impl Into<Bytes>) -> Self {
        self.id = Some(IdText::new(id));
        self
    }

    /// Sets the kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// Sets the time at which the producer made the message.
    #[must_use]
    pub fn produced_at(mut self, time: SystemTime) -> Self {
        self.produced_at = Some(time);
        self
    }

    /// In a handler: the id under which the inbox claimed this message. Nil elsewhere.
    #[must_use]
    pub fn message_id(&self) -> MessageId {
        self.context.message_id
    }

    /// In a handler: which attempt this is, counting from 1. Zero elsewhere.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.context.attempt
    }

    /// In a handler: where the message came from. Empty elsewhere.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.context.source
    }

    /// The same message around another body.
    #[must_use]
    pub fn with_body<T>(&self, body: T) -> Message<T> {
        Message {
            id: self.id.clone(),
            kind: self.kind.clone(),
            key: self.key.clone(),
            headers: self.headers.clone(),
            origin: self.origin.clone(),
            produced_at: self.produced_at,
            stored_at: self.stored_at,
            body,
            context: self.context.clone(),
        }
    }
}

impl Message {
    /// The bytes that this message counts for in the in-flight bound: body, headers, key and id.
    #[must_use]
    pub fn size(&self) -> usize {
        self.body.len()
            + self.headers.size()
            + self.key.as_ref().map_or(0, Bytes::len)
            + self.id.as_ref().map_or(0, |id| id.as_bytes().len())
    }
}

impl<E> fmt::Debug for Message<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("key_bytes", &self.key.as_ref().map_or(0, Bytes::len))
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
