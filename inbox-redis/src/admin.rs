//! Streams and groups: made, looked at, counted, trimmed. For tests and first steps, but for `trim`.

use inbox_core::{TransportError, TransportErrorKind};
use redis::{FromRedisValue, RedisError, Script, ScriptInvocation, cmd};

use crate::{client::Remote, config::RedisConfig, error, handover::CONSUMER, script};

/// Consumers that were not seen for so long, and hold nothing, are those of dead processes: one that lives reads all the
/// time.
const UNSEEN_MILLIS: u64 = 3_600_000;

/// From where a group reads: all that is there. What an earlier group of this name had done is found to be done.
const START: &str = "0";

pub(crate) async fn provision(config: RedisConfig) -> Result<(), TransportError> {
    const OPERATION: &str = "provision";
    let remote = Remote::connect(config, OPERATION).await?;
    // A stream without an entry comes with a group only, which may go again.
    let group = remote.config.group_if_any().unwrap_or("inbox:provision");
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(&*remote.stream).arg(group).arg(START).arg("MKSTREAM");
    unless_there(request::<()>(&remote, &create).await).map_err(|error| remote.refused(OPERATION, error))?;
    if remote.config.group_if_any().is_none() {
        let mut destroy = cmd("XGROUP");
        destroy.arg("DESTROY").arg(&*remote.stream).arg(group);
        request::<()>(&remote, &destroy).await.map_err(|error| remote.refused(OPERATION, error))?;
    }
    Ok(())
}

/// Makes a group of a stream that must be there, unless the group is.
pub(crate) async fn make_group(remote: &Remote, group: &str, operation: &'static str) -> Result<(), TransportError> {
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(&*remote.stream).arg(group).arg(START);
    unless_there(request::<()>(remote, &create).await).map_err(|error| remote.refused(operation, error))
}

fn unless_there(made: Result<(), RedisError>) -> Result<(), RedisError> {
    made.or_else(|error| if error.code() == Some("BUSYGROUP") { Ok(()) } else { Err(error) })
}

/// Makes sure that there is a stream.
pub(crate) async fn verify(remote: &Remote, operation: &'static str) -> Result<(), TransportError> {
    let mut kind = cmd("TYPE");
    kind.arg(&*remote.stream);
    let kind: String = request(remote, &kind).await.map_err(|error| remote.refused(operation, error))?;
    let stream = remote.stream.escape_debug();
    match kind.as_str() {
        "stream" => Ok(()),
        "none" => Err(TransportError::new(TransportErrorKind::NotFound, operation)
            .context(format!("the stream `{stream}` does not exist; `inbox::provision(url)` creates it"))),
        other => Err(TransportError::new(TransportErrorKind::InvalidConfig, operation)
            .context(format!("the key `{stream}` is a {other}, no stream"))),
    }
}

/// Removes the consumers that dead processes have left. What they held stays until it is taken.
pub(crate) async fn sweep(remote: &Remote, group: &str) {
    let mut call = script::SWEEP.key(&*remote.stream);
    call.arg(group).arg(CONSUMER).arg(UNSEEN_MILLIS);
    match run::<u64>(remote, &call).await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "consumers of dead processes"),
        // They are in nobody's way.
        Err(error) => tracing::debug!(%error, "consumers of dead processes were not removed"),
    }
}

/// Whether the server writes to its disk what it confirms, before it confirms it. Who may not ask does not know, and what
/// is not known is not promised.
pub(crate) async fn is_durable(remote: &Remote) -> Result<bool, TransportError> {
    for (setting, safe) in [("appendonly", "yes"), ("appendfsync", "always")] {
        let mut get = cmd("CONFIG");
        get.arg("GET").arg(setting);
        match request::<Vec<String>>(remote, &get).await {
            Ok(answer) if answer.get(1).is_some_and(|value| value == safe) => {}
            Ok(_) => return Ok(false),
            Err(error) if error::kind_of(&error) == TransportErrorKind::Unavailable => {
                return Err(remote.refused("connect", error));
            }
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

pub(crate) async fn backlog(config: RedisConfig) -> Result<u64, TransportError> {
    let group = config.required_group()?.to_owned();
    let remote = Remote::connect(config, "count messages").await?;
    let mut call = script::BACKLOG.key(&*remote.stream);
    call.arg(group);
    run(&remote, &call).await.map_err(|error| remote.refused("count messages", error))
}

pub(crate) async fn length(config: RedisConfig) -> Result<u64, TransportError> {
    let remote = Remote::connect(config, "count messages").await?;
    verify(&remote, "count messages").await?;
    let mut length = cmd("XLEN");
    length.arg(&*remote.stream);
    request(&remote, &length).await.map_err(|error| remote.refused("count messages", error))
}

pub(crate) async fn trim(config: RedisConfig) -> Result<u64, TransportError> {
    let remote = Remote::connect(config, "trim").await?;
    verify(&remote, "trim").await?;
    run(&remote, &prepared(&remote, &script::TRIM)).await.map_err(|error| remote.refused("trim", error))
}

fn prepared<'a>(remote: &Remote, script: &'a Script) -> ScriptInvocation<'a> {
    script.key(&*remote.stream)
}

async fn request<T: FromRedisValue>(remote: &Remote, command: &redis::Cmd) -> Result<T, RedisError> {
    let mut connection = remote.connection().await?;
    remote.noted(command.query_async(&mut connection).await)
}

async fn run<T: FromRedisValue>(remote: &Remote, call: &ScriptInvocation<'_>) -> Result<T, RedisError> {
    let mut connection = remote.connection().await?;
    remote.noted(call.invoke_async(&mut connection).await)
}
