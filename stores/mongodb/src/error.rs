//! Driver errors as ours: is the server unreachable, does it refuse us, and is the outcome of the request known?

use distlock_core::store::support::errors::{self, IS_IT_REACHABLE};
use distlock_core::{Error, ErrorKind};
use mongodb::bson::{Bson, Document};
use mongodb::error::{CommandError, ErrorKind as DriverKind};

/// Two upserts of one id at the same time: one of them finds the other's document.
pub(crate) const DUPLICATE_KEY: i32 = 11000;

/// The collection does not exist.
pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;

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
        DriverKind::ServerSelection { message, .. } => errors::unavailable(first_line(message)),
        DriverKind::DnsResolve { message, .. } => {
            errors::unavailable(format!("the name of the server cannot be resolved: {}", first_line(message)))
        }
        DriverKind::Authentication { message, .. } => {
            Error::new(ErrorKind::Denied, first_line(message).to_owned())
                .advise("check user, password and authSource in the URL")
        }
        // The driver's message repeats the paths of the URL.
        DriverKind::InvalidTlsConfig { .. } => {
            Error::new(ErrorKind::InvalidInput, "TLS cannot be used with the certificates that the URL names")
                .advise("check the files of tlsCAFile and tlsCertificateKeyFile")
        }
        DriverKind::InvalidArgument { message, .. } => {
            Error::new(ErrorKind::InvalidInput, first_line(message).to_owned())
                .advise("check the options of the URL")
        }
        DriverKind::IncompatibleServer { message, .. } => {
            Error::new(ErrorKind::Unsupported, first_line(message).to_owned())
                .advise("use MongoDB 4.2 or later")
        }
        DriverKind::Shutdown => {
            Error::new(ErrorKind::ShutDown, "the MongoDB client was shut down").advise("connect again")
        }
        // The driver refused to send it because the pool's connections had broken. Requests that were in flight get a
        // message with "interrupted".
        DriverKind::ConnectionPoolCleared { message, .. } if !message.contains("interrupted") => {
            errors::unavailable(first_line(message))
        }
        // The connection broke, or the driver closed it because its server stopped answering. The driver does not say
        // whether the request was sent.
        _ => errors::connection_lost(first_line(&error.kind.to_string())),
    }
}

/// The driver's messages contain whole topologies.
fn first_line(message: &str) -> &str {
    const LONGEST: usize = 300;
    let line = message.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => &line[..end],
        None => line,
    }
}

fn from_command(command: &CommandError) -> Error {
    from_code(command.code, &command.code_name, &command.message)
}

/// The error for a code that the server sent, for a whole command or for one update of many.
pub(crate) fn from_code(code: i32, name: &str, message: &str) -> Error {
    let what = format!("{} ({name}, code {code})", first_line(message));
    match code {
        // Unauthorized, AuthenticationFailed, and Atlas's own.
        13 | 18 | 8000 => Error::new(ErrorKind::Denied, what).advise(GRANT_RIGHTS),
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
            format!("a majority of the replica set did not confirm: {} (code {code})", first_line(what)),
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
