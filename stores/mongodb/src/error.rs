//! Driver errors as ours: is the server unreachable, does it refuse us, and is the outcome of the request known?

use distlock_core::store::support::errors::{self, IS_IT_REACHABLE, brief};
use distlock_core::{Error, ErrorKind};
use mongodb::bson::{Bson, Document};
use mongodb::error::{CommandError, ErrorKind as DriverKind};

/// Two upserts of one id at the same time: one of them finds the other's document.
pub(crate) const DUPLICATE_KEY: i32 = 11000;

/// The collection does not exist.
pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;

const ADD_LOGIN: &str = "put user:password into the URL: mongodb://user:password@host/database";
const GRANT_RIGHTS: &str =
    "give the user the role readWrite on the database (find, insert, update, remove, changeStream)";
const USE_OWN_COLLECTION: &str = "use a collection of its own for the locks (distlock.collection)";
const DELETE_IF_UNUSED: &str =
    "find out which program changed it, and delete the document once no client uses that lock";

/// The error of a request that was sent through the driver.
pub(crate) fn from_driver(error: &mongodb::error::Error) -> Error {
    match &*error.kind {
        DriverKind::Command(command) => from_command(command),
        // Not sent: no server is available.
        DriverKind::ServerSelection { message, .. } => errors::unavailable(unreachable_servers(message)),
        DriverKind::DnsResolve { message, .. } => {
            errors::unavailable(format!("the name of the server cannot be resolved: {}", brief(message)))
        }
        DriverKind::Authentication { message, .. } => Error::new(ErrorKind::Denied, brief(message))
            .advise("check user, password and authSource in the URL"),
        // The driver's message repeats the paths of the URL.
        DriverKind::InvalidTlsConfig { .. } => {
            Error::new(ErrorKind::InvalidInput, "TLS cannot be used with the certificates that the URL names")
                .advise("check the files of tlsCAFile and tlsCertificateKeyFile")
        }
        DriverKind::InvalidArgument { message, .. } => {
            Error::new(ErrorKind::InvalidInput, brief(message)).advise("check the options of the URL")
        }
        DriverKind::IncompatibleServer { message, .. } => {
            Error::new(ErrorKind::Unsupported, brief(message)).advise("use MongoDB 4.2 or later")
        }
        DriverKind::Shutdown => {
            Error::new(ErrorKind::ShutDown, "the MongoDB client was shut down").advise("connect again")
        }
        // The driver refused to send it because the pool's connections had broken. Requests that were in flight get a
        // message with "interrupted".
        DriverKind::ConnectionPoolCleared { message, .. } if !message.contains("interrupted") => {
            errors::unavailable(brief(message))
        }
        // The connection broke, or the driver closed it because its server stopped answering. The driver does not say
        // whether the request was sent.
        _ => errors::connection_lost(brief(error.kind.to_string())),
    }
}

/// What the driver's description of the whole topology says about each server: `h1:27017: Connection refused`.
fn unreachable_servers(message: &str) -> String {
    let mut servers = Vec::new();
    for part in message.split("Address: ").skip(1) {
        let Some((address, rest)) = part.split_once(", ") else { continue };
        let error = rest.split_once("Error: Kind: ").map(|(_, error)| error);
        let reason = match error {
            Some(error) => {
                let end = error.find(", labels:").unwrap_or(error.len());
                brief(error[..end].trim_start_matches("I/O error: "))
            }
            None if rest.starts_with("Type: RsSecondary") => "a secondary".to_owned(),
            None if rest.starts_with("Type: Unknown") => "no reply yet".to_owned(),
            None => continue,
        };
        servers.push(format!("{address}: {reason}"));
    }
    match servers.as_slice() {
        [] => brief(message.split(" Topology:").next().unwrap_or_default()),
        // A replica set that works but for its primary.
        all if all.iter().any(|server| server.ends_with(": a secondary")) => {
            format!("the replica set has no primary: {}", all.join(", "))
        }
        all => all.join(", "),
    }
}

/// The server repeats whole commands, pipelines included. Of a document the first field is enough:
/// `to execute command { findAndModify: "locks", … }` becomes `to execute command findAndModify: "locks"`.
fn without_documents(message: &str) -> String {
    match message.split_once("{ ") {
        Some((before, document)) => {
            format!("{before}{}", document.split([',', '{', '}']).next().unwrap_or_default().trim_end())
        }
        None => message.to_owned(),
    }
}

fn from_command(command: &CommandError) -> Error {
    from_code(command.code, &command.code_name, &command.message)
}

/// The error for a code that the server sent, for a whole command or for one update of many.
pub(crate) fn from_code(code: i32, name: &str, message: &str) -> Error {
    let what = format!("{} ({name}, code {code})", brief(without_documents(message)));
    match code {
        13 if message.contains("requires authentication") => {
            Error::new(ErrorKind::Denied, "the server requires a login").advise(ADD_LOGIN)
        }
        18 => Error::new(ErrorKind::Denied, what).advise("check user, password and authSource in the URL"),
        // Unauthorized, and Atlas's own.
        13 | 8000 => Error::new(ErrorKind::Denied, what).advise(GRANT_RIGHTS),
        // Not the primary: refused before anything was applied.
        10107 | 13435 | 10058 | 13436 => {
            Error::new(ErrorKind::Unavailable, what).advise("name the whole replica set in the URL")
        }
        // Stepping down, shutting down or interrupted, possibly while the write waited for its majority.
        91 | 189 | 11600 | 11602 | 11601 | 6 | 7 | 89 | 9001 | 50 | 262 | 134 | 64 | 100 | 79 | 112 => {
            Error::new(ErrorKind::Unavailable, what).advise(IS_IT_REACHABLE).with_unknown_outcome()
        }
        // No disk space; a document of more than 16 MB.
        14031 | 10334 | 17419 | 17420 | 39 => Error::new(ErrorKind::Exhausted, what)
            .advise("free some disk space, or let fewer clients hold or wait for one name"),
        // A view, a time series, a validator: the collection was made for something else.
        121 | 166 | 14 | 241 | 16554 => Error::new(ErrorKind::Corrupt, what).advise(USE_OWN_COLLECTION),
        2 if message.contains("journal") => Error::new(ErrorKind::Unsupported, what)
            .advise("switch journaling on: without it a crash of the server loses who holds a lock"),
        _ => Error::new(ErrorKind::Internal, what).with_unknown_outcome(),
    }
}

/// The error in a reply that is formally a success.
pub(crate) fn in_reply(reply: &Document) -> Option<Error> {
    let concern = reply.get_document("writeConcernError").ok()?;
    let what = concern.get_str("errmsg").unwrap_or("no reason given");
    let code = concern.get("code").and_then(number).unwrap_or_default();
    Some(
        Error::new(
            ErrorKind::Unavailable,
            format!("a majority of the replica set did not confirm: {} (code {code})", brief(what)),
        )
        .with_unknown_outcome()
        .advise("check that most members of the replica set run and reach each other"),
    )
}

/// The document of that name is not in the format of locks.
pub(crate) fn foreign_document(collection: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the document of that name in {collection:?} is not a lock; it was left unchanged"),
    )
    .advise(USE_OWN_COLLECTION)
}

/// The document of a pool lacks a field, or a field has another type. The update was applied to it.
pub(crate) fn unreadable(id: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the document {id:?} cannot be read: a field is missing or of another type"),
    )
    .with_unknown_outcome()
    .advise(DELETE_IF_UNUSED)
}

/// The token of a document is not an integer, or too high to be followed by another.
pub(crate) fn uncountable(collection: &str, id: &str, token: &Bson) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the fencing token {token} of the document {id:?} in {collection:?} cannot be counted on from; \
             it was left unchanged"
        ),
    )
    .advise(DELETE_IF_UNUSED)
}

/// Another client acquired the lock while a batch released it.
pub(crate) fn ambiguous_release() -> Error {
    Error::new(
        ErrorKind::Lost,
        "another client acquired it during the release; whether it was ours until then cannot be seen",
    )
    .with_unknown_outcome()
}

/// A reply that no MongoDB server sends.
pub(crate) fn unexpected_reply(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, format!("unexpected reply of the server: {what}")).with_unknown_outcome()
}

/// A command that cannot be written. It was not sent.
pub(crate) fn unwritable(why: &'static str) -> Error {
    Error::new(ErrorKind::Internal, format!("a command cannot be written: {why}"))
}

/// The task of a request ended before the request: the runtime is shutting down.
pub(crate) fn task_ended(request: &'static str) -> Error {
    Error::new(ErrorKind::Internal, format!("the task of a request ended early: {request}"))
        .with_unknown_outcome()
}

/// A number, whichever numeric type it has. Doubles are truncated and saturate.
pub(crate) fn number(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(n) => Some(i64::from(*n)),
        Bson::Int64(n) => Some(*n),
        #[allow(clippy::cast_possible_truncation)]
        Bson::Double(n) => Some(*n as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_command_is_named_and_not_repeated() {
        let message =
            "not authorized on app to execute command { findAndModify: \"locks\", update: [ { $set: 1 } ] }";
        let error = from_code(13, "Unauthorized", message).to_string();
        assert!(
            error.starts_with("not authorized on app to execute command findAndModify: \"locks\" (Unauth"),
            "{error}"
        );
    }

    #[test]
    fn a_topology_is_cut_to_the_servers_and_their_errors() {
        let server = |address: &str, rest: &str| format!("{{ Address: {address}, Type: {rest} }}");
        let refused = "Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {\"X\"}, source: None";
        let message = |servers: &[String]| {
            let set = "Type: ReplicaSetNoPrimary, Set Name: rs0";
            format!(
                "Server selection timeout: No available servers. Topology: {{ {set}, Servers: [ {} ] }}",
                servers.join(", ")
            )
        };
        let down = message(&[server("h1:1", refused), server("h2:2", refused)]);
        assert_eq!(unreachable_servers(&down), "h1:1: Connection refused, h2:2: Connection refused");
        let headless = message(&[server("h1:1", refused), server("h2:2", "RsSecondary, Average RTT: 2ms")]);
        assert_eq!(
            unreachable_servers(&headless),
            "the replica set has no primary: h1:1: Connection refused, h2:2: a secondary"
        );
        assert_eq!(unreachable_servers("Server selection timeout"), "Server selection timeout");
    }
    use mongodb::bson::doc;

    #[test]
    fn an_error_tells_whether_its_outcome_is_known() {
        for (code, unknown, kind) in [
            (10107, false, ErrorKind::Unavailable),
            (189, true, ErrorKind::Unavailable),
            (64, true, ErrorKind::Unavailable),
            (13, false, ErrorKind::Denied),
            (10334, false, ErrorKind::Exhausted),
        ] {
            let error = from_code(code, "Name", "message");
            assert_eq!((error.is_outcome_unknown(), error.kind()), (unknown, kind), "{error}");
        }
        let reply = doc! { "ok": 1, "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
        assert!(in_reply(&reply).unwrap().is_outcome_unknown());
        assert!(in_reply(&doc! { "ok": 1 }).is_none());
    }
}
