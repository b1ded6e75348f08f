//! The messages of Pub/Sub's protocol that the client uses.

use std::collections::HashMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullRequest {
    #[prost(string, tag = "1")]
    pub(crate) subscription: String,
    #[prost(int32, tag = "5")]
    pub(crate) ack_deadline_seconds: i32,
    #[prost(string, tag = "6")]
    pub(crate) client_id: String,
    #[prost(int64, tag = "7")]
    pub(crate) max_outstanding_messages: i64,
    #[prost(int64, tag = "8")]
    pub(crate) max_outstanding_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) received: Vec<Received>,
    #[prost(message, optional, tag = "4")]
    pub(crate) properties: Option<Properties>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Properties {
    #[prost(bool, tag = "1")]
    pub(crate) exactly_once: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Received {
    #[prost(string, tag = "1")]
    pub(crate) ack_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) message: Option<PubsubMessage>,
    #[prost(int32, tag = "3")]
    pub(crate) delivery_attempt: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PubsubMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
    #[prost(map = "string, string", tag = "2")]
    pub(crate) attributes: HashMap<String, String>,
    #[prost(string, tag = "3")]
    pub(crate) message_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) publish_time: Option<Time>,
    #[prost(string, tag = "5")]
    pub(crate) ordering_key: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AckRequest {
    #[prost(string, tag = "1")]
    pub(crate) subscription: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) ack_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModifyRequest {
    #[prost(string, tag = "1")]
    pub(crate) subscription: String,
    #[prost(int32, tag = "3")]
    pub(crate) seconds: i32,
    #[prost(string, repeated, tag = "4")]
    pub(crate) ack_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PublishRequest {
    #[prost(string, tag = "1")]
    pub(crate) topic: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) messages: Vec<PubsubMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PublishResponse {
    #[prost(string, repeated, tag = "1")]
    pub(crate) ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<AnyDetail>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyDetail {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ErrorInfo {
    #[prost(string, tag = "1")]
    pub(crate) reason: String,
    #[prost(string, tag = "2")]
    pub(crate) domain: String,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) metadata: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Time {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}
