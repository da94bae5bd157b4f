//! What the driver's errors mean to somebody who wants a lock: is it down, does it refuse us, and may the request
//! have been carried out all the same?

use distlock_core::{Error, ErrorKind};
use mongodb::bson::{Bson, Document};
use mongodb::error::{CommandError, ErrorKind as DriverKind};

/// Two upserts of the same name at once: one of them finds the document of the other.
pub(crate) const DUPLICATE_KEY: i32 = 11000;

/// What a merge says, among other things, if the document that it is for does not exist.
pub(crate) const NO_SUCH_DOCUMENT: &str = "code 13113)";

const START: &str = "check that the server runs and can be reached from here";
const RIGHTS: &str =
    "give the user the role readWrite on the database (find, insert, update, remove, changeStream)";

/// The error of a request that went through the driver.
pub(crate) fn from_driver(error: &mongodb::error::Error) -> Error {
    match &*error.kind {
        DriverKind::Command(command) => from_command(command),
        // Nothing was sent: there is nobody to send it to.
        DriverKind::ServerSelection { message, .. } => unavailable(first_line(message)),
        DriverKind::DnsResolve { message, .. } => {
            unavailable(format!("the name of the server cannot be resolved: {}", first_line(message)))
        }
        DriverKind::Authentication { message, .. } => {
            Error::new(ErrorKind::Denied, first_line(message).to_owned())
                .advise("check user, password and authSource in the URL")
        }
        // Its message repeats the paths of the URL.
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
        // The driver turned it away unsent, since another one's connection had broken. Those that had left already are
        // told to be interrupted.
        DriverKind::ConnectionPoolCleared { message, .. } if !message.contains("interrupted") => {
            unavailable(first_line(message))
        }
        // The connection broke, or was ended because its server fell silent. The driver does not say whether the
        // request was on its way by then.
        _ => unavailable(first_line(&error.kind.to_string())).with_unknown_outcome(),
    }
}

fn unavailable(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, what.into()).advise(START)
}

/// The driver's messages carry whole topologies.
fn first_line(message: &str) -> &str {
    const LONGEST: usize = 300;
    let line = message.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => &line[..at],
        None => line,
    }
}

fn from_command(command: &CommandError) -> Error {
    from_code(command.code, &command.code_name, &command.message)
}

/// The error of a code that the server sent, in place of an answer or for one item of a batch.
pub(crate) fn from_code(code: i32, name: &str, message: &str) -> Error {
    let what = format!("{} ({name}, code {code})", first_line(message));
    match code {
        // Unauthorized, AuthenticationFailed, and Atlas's own.
        13 | 18 | 8000 => Error::new(ErrorKind::Denied, what).advise(RIGHTS),
        // Not the primary: refused before anything was done.
        10107 | 13435 | 10058 | 13436 => {
            Error::new(ErrorKind::Unavailable, what).advise("name the whole replica set in the URL")
        }
        // Stepping down, shutting down, interrupted: perhaps while the write waited for its majority.
        91 | 189 | 11600 | 11602 | 11601 | 6 | 7 | 89 | 9001 | 50 | 262 | 134 | 64 | 100 | 79 | 112 => {
            Error::new(ErrorKind::Unavailable, what).advise(START).with_unknown_outcome()
        }
        // No disk space; a document of more than 16 MB.
        14031 | 10334 | 17419 | 17420 | 39 => Error::new(ErrorKind::Exhausted, what)
            .advise("free some disk space, or let fewer hold or wait for one name"),
        // A view, a time series, a validator: a collection made for something else.
        121 | 166 | 14 | 241 | 16554 => Error::new(ErrorKind::Corrupt, what)
            .advise("let the locks have a collection of their own (distlock.collection)"),
        2 if message.contains("journal") => Error::new(ErrorKind::Unsupported, what)
            .advise("switch journaling on: without it a crash of the server forgets who holds a lock"),
        _ => Error::new(ErrorKind::Internal, what).with_unknown_outcome(),
    }
}

/// What a reply says that is formally a success.
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

/// What the store holds under our name was not written by us, nor by anybody who follows the format.
pub(crate) fn alien(collection: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the document of that name in {collection:?} is no lock; it was left as it is"),
    )
    .advise("let the locks have a collection of their own (distlock.collection)")
}

/// A pool's document that lacks something, or has something else in its place. Whatever was asked of it was done to it.
pub(crate) fn unreadable(id: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the document {id:?} cannot be read: a field is missing or of another type"),
    )
    .with_unknown_outcome()
    .advise("find out which program changed it, and delete the document once nobody uses that lock")
}

/// A document whose token is too high for a higher one, or no whole number at all.
pub(crate) fn uncountable(collection: &str, id: &str, token: &Bson) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the fencing token {token} of the document {id:?} in {collection:?} cannot be counted on from; it was left as it is"
        ),
    )
    .advise("find out which program wrote it, and delete the document once nobody uses that lock")
}

/// A reply that no MongoDB gives.
pub(crate) fn odd(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, format!("a reply of the server makes no sense: {what}"))
        .with_unknown_outcome()
}

/// A number of whatever type the server chose for it.
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
    fn what_may_have_been_carried_out_says_so_and_what_was_not_does_not() {
        for (code, unknown, kind) in [
            (10107, false, ErrorKind::Unavailable),
            (189, true, ErrorKind::Unavailable),
            (64, true, ErrorKind::Unavailable),
            (13, false, ErrorKind::Denied),
            (10334, false, ErrorKind::Exhausted),
        ] {
            let error = from_code(code, "Name", "words");
            assert_eq!((error.is_outcome_unknown(), error.kind()), (unknown, kind), "{error}");
        }
        let reply = doc! { "ok": 1, "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
        assert!(in_reply(&reply).unwrap().is_outcome_unknown());
        assert!(in_reply(&doc! { "ok": 1 }).is_none());
    }
}
