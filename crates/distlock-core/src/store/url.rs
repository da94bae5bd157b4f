//! Store URLs: the one parser that every store uses.

mod authority;
mod parameters;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use authority::{Authority, Host, Login, Server};
use parameters::{OURS, Parameter, is_ours, name_where_safe, parameters, take};
pub use values::{Secret, parse_duration, plain};
use values::{decode, decode_text};

use super::UrlOption;
use crate::error::{Error, ErrorKind, Result};
use crate::options::LOCK_OPTIONS;

/// A store URL, taken apart once. Stores build what their driver gets from these parts, never from the text: two
/// parsers of one text may disagree, and what the second one misses is lost.
///
/// ```
/// let mut url = distlock_core::store::StoreUrl::parse(
///     "postgres://app:p%40ss@db1:5432,db2/orders?sslmode=require&distlock.retention=2h",
/// )?;
/// url.accept(&["postgres", "postgresql"])?;
/// let authority = url.authority()?;
/// assert_eq!(authority.login.as_ref().and_then(|login| login.user()), Some("app"));
/// assert_eq!(authority.servers.len(), 2);
/// assert_eq!(url.path()?, "/orders");
/// assert_eq!(url.take_driver("sslmode").as_deref(), Some("require"));
/// assert_eq!(url.take_duration("retention")?, Some(std::time::Duration::from_secs(7200)));
/// assert_eq!(url.to_string(), "postgres://***");
/// # Ok::<(), distlock_core::Error>(())
/// ```
///
/// # Grammar
/// `scheme:[//authority][path][?name=value&…]`, as RFC 3986 has it: the authority ends at the first `/` or `?`. Where
/// the parsers in use disagree, the text is refused instead of guessed at:
///
/// - A `#` is refused: there are no fragments, and so no `#insecure`. In a password it is written `%23`.
/// - A control character (a newline, a NUL) and a `\` are refused; other parsers drop or turn them. Escaped, a newline
///   may be part of a value; a NUL may not be part of anything.
/// - An `@` that may end a password with an unescaped `/` or `?` in it is refused: in a path that follows a host, and in a
///   query that directly follows a host without a login (`redis://:half1?half2@h`). Elsewhere in a query it is a
///   character like others: `application_name=me@host`.
/// - More than one `@` before a host is refused, and so is a `%` that begins no escape.
/// - A host is a name of letters, digits, `.`, `-` and `_`, an IPv6 address in brackets, or the escaped path of a socket
///   (`%2Frun%2Fpostgresql`). A port is a number from 1 to 65535.
///
/// # Parameters
/// Names and values are percent-decoded once; a `+` is a plus sign. A name is made of ASCII letters and digits, `.`, `-`
/// and `_`. One that stands there twice is refused, in
/// whatever case or escape it is written, so that a later `sslmode=disable` cannot undo an earlier `sslmode=require`.
/// Names that begin with `distlock.` are ours, and each store refuses those that it does not know. Of the others, too, a
/// store takes those it knows and refuses the rest: a parameter that is dropped silently may be the one that asked for
/// encryption.
///
/// # Encryption
/// What a URL asks for is done or refused, never done by half. What the stores decided:
///
/// | | encrypted if | refused |
/// | --- | --- | --- |
/// | Redis | the scheme says so: `rediss`, `valkeys`, `rediss+…`, `redlocks`; for all servers of a list alike | `#insecure`, `tls=`, `ssl=`; a user without a password; logins of a Cluster that differ |
/// | PostgreSQL | `sslmode` is `require`, `verify-ca` or `verify-full`; with `allow` and `prefer` (the default) if the server can | `sslrootcert` with a mode that checks nothing; `sslcert` or `channel_binding=require` with `disable`; `sslnegotiation=direct` without `require`; what libpq knows and we do not, such as `sslcrl` and `require_auth` |
/// | MongoDB | `tls` or `ssl` is `true`, another `tls` option is given, or the scheme is `mongodb+srv` and neither is `false` | `tls` and `ssl` that differ; `tlsCAFile` with `tlsInsecure` or `tlsAllowInvalidCertificates`; an `@` without a user; what the driver would read differently |
/// | SQL Server | unless `encrypt` is `false` (the login alone) or `danger_plaintext` | `trustservercertificate` with `encrypt=strict`, or with a certificate to trust; a certificate with `danger_plaintext`; `applicationintent=readonly`; what is not known |
///
/// # Secrets
/// No text of a URL is shown. `Display` and `Debug` give the scheme alone if it is a store's, and errors say which part is wrong. The
/// exceptions are hosts, database names and folders once the whole URL was understood: those a store's configuration
/// shows.
#[derive(Clone)]
pub struct StoreUrl {
    scheme: String,
    /// The scheme is a store's, and not the beginning of something else.
    accepted: bool,
    /// As it was written, without the slashes before it.
    authority: Option<String>,
    /// As it was written.
    path: String,
    ours: Vec<Parameter>,
    drivers: Vec<Parameter>,
    /// The options of locks were taken, and errors name them among the known ones.
    knows_lock_options: bool,
}

const EXAMPLES: &str = "write it like redis://host:6379 or file:///var/lock/app";
const ESCAPES: &str = "write special characters as escapes: @ as %40, / as %2F, ? as %3F, # as %23, % as %25";

impl StoreUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there is no scheme, or the text can be read in more than one way.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |what: &str| Err(refusal(what.to_owned(), ESCAPES));
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(refusal("it has no scheme", EXAMPLES));
        };
        let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !well_formed {
            return Err(refusal("it does not begin with a scheme", EXAMPLES));
        }
        if rest.contains('#') {
            return bad("there is a # in it: a store URL has no fragment, such as #insecure");
        }
        if rest.contains(|c: char| c.is_control() || c == '\\') {
            return bad("there is a control character or a \\ in it");
        }
        let (before, query) = match rest.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = match before.strip_prefix("//") {
            Some(after) => {
                let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
                (Some(authority), path)
            }
            None => (None, before),
        };
        if let Some(authority) = authority.filter(|authority| !authority.is_empty()) {
            if path.contains('@') {
                return bad("there is an @ in its path, where a password with a / in it would end");
            }
            let queried = query.is_some_and(|query| query.contains('@'));
            if queried && path.is_empty() && !authority.contains('@') {
                return bad("there is an @ in its query, where a password with a ? in it would end");
            }
        }
        let (mut ours, mut drivers) = parameters(query.unwrap_or_default())?;
        let mut all: Vec<&mut Parameter> = ours.iter_mut().chain(&mut drivers).collect();
        all.sort_by_key(|parameter| parameter.place);
        name_where_safe(&mut all, authority.unwrap_or_default());
        Ok(StoreUrl {
            scheme: scheme.to_ascii_lowercase(),
            accepted: false,
            authority: authority.map(str::to_owned),
            path: path.to_owned(),
            ours,
            drivers,
            knows_lock_options: false,
        })
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Refuses every scheme but these. From then on the scheme is shown: before, it may be the beginning of anything that
    /// has a colon in it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for another scheme.
    pub fn accept(&mut self, schemes: &[&str]) -> Result<()> {
        self.accepted = schemes.contains(&self.scheme());
        if self.accepted {
            return Ok(());
        }
        Err(self
            .refuse("no store answers to its scheme")
            .advise(format!("known here: {}", schemes.join(", "))))
    }

    /// Whether `//` follows the scheme, be there a host behind it or not.
    #[must_use]
    pub fn has_authority(&self) -> bool {
        self.authority.is_some()
    }

    /// The servers between `//` and the path, none if there is nothing; a login before them is meant for all.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a login, a host or a port that is not well-formed.
    pub fn authority(&self) -> Result<Authority> {
        let authority = self.authority.as_deref().unwrap_or_default();
        authority::one_login(authority).map_err(|what| self.refuse(what).advise(ESCAPES))
    }

    /// The servers between `//` and the path, each with the login that stands before it. A comma always ends a server,
    /// so if any has a login, the first one has: otherwise the comma may be part of a password. An empty login says
    /// that there is none: `@h1,user:password@h2`.
    ///
    /// # Errors
    /// As for [`authority`](StoreUrl::authority).
    pub fn authority_each(&self) -> Result<Vec<(Option<Login>, Server)>> {
        let authority = self.authority.as_deref().unwrap_or_default();
        authority::logins_each(authority).map_err(|what| self.refuse(what).advise(ESCAPES))
    }

    /// The path, decoded, with the `/` that it begins with.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not UTF-8 after decoding, has a NUL or a `%` that begins no escape.
    pub fn path(&self) -> Result<String> {
        decode_text(&self.path).map_err(|fault| self.refuse(format!("its path {fault}")))
    }

    /// The path as the name of a file, which may hold any byte but NUL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it has a NUL or a `%` that begins no escape.
    pub fn file_path(&self) -> Result<PathBuf> {
        let bytes = decode(&self.path).map_err(|fault| self.refuse(format!("its path {fault}")))?;
        values::to_path(bytes).ok_or_else(|| self.refuse("its path is not UTF-8"))
    }

    /// Takes the value of `distlock.KEY` out.
    pub fn take(&mut self, key: &str) -> Option<String> {
        take(&mut self.ours, |name| name.strip_prefix(OURS) == Some(key))
    }

    /// Takes the value of a parameter out that is not ours.
    pub fn take_driver(&mut self, name: &str) -> Option<String> {
        take(&mut self.drivers, |other| other == name)
    }

    /// The parameters that are not ours and were not taken, in order.
    pub fn driver_parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.drivers.iter().map(|parameter| (parameter.name.as_str(), parameter.value.as_str()))
    }

    /// Takes a time out: a number with its unit, `500ms`, `10s`, `2m` or `1h`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything else.
    pub fn take_duration(&mut self, key: &str) -> Result<Option<Duration>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let time = parse_duration(&text);
        time.map(Some).ok_or_else(|| self.refuse_value(key, "a time such as 500ms, 10s, 2m or 1h"))
    }

    /// Takes a value out that is never shown.
    pub fn take_secret(&mut self, key: &str) -> Option<Secret> {
        self.take(key).map(Secret::new)
    }

    /// Takes a word out that must be one of these.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for any other.
    pub fn take_word(&mut self, key: &str, words: &[&'static str]) -> Result<Option<&'static str>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let found = words.iter().copied().find(|word| *word == text);
        found.map(Some).ok_or_else(|| self.refuse_value(key, &format!("one of {}", words.join(", "))))
    }

    /// Takes `on` or `off` out; `true` and `false` mean the same.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything else.
    pub fn take_switch(&mut self, key: &str) -> Result<Option<bool>> {
        let word = self.take_word(key, &["on", "off", "true", "false"])?;
        Ok(word.map(|word| matches!(word, "on" | "true")))
    }

    /// To be called when all known parameters of ours were taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if any is left; `known` names those there are.
    pub fn refuse_unknown(&self, known: &[&str]) -> Result<()> {
        let Some(left) = self.ours.first() else { return Ok(()) };
        let of_locks = LOCK_OPTIONS.iter().map(|option| option.name).filter(|_| self.knows_lock_options);
        let known: Vec<String> =
            known.iter().copied().chain(of_locks).map(|key| format!("{OURS}{key}")).collect();
        Err(self.unknown(left, &known))
    }

    /// Refuses every `distlock.` parameter that was not taken: a store calls it when it has taken those of its table.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if any is left; the error names those of the table.
    pub fn refuse_other_options(&self, known: &[UrlOption]) -> Result<()> {
        let known: Vec<&str> = known.iter().map(|option| option.name).collect();
        self.refuse_unknown(&known)
    }

    /// To be called when all known parameters that are not ours were taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if any is left; `known` names those there are.
    pub fn refuse_unknown_driver(&self, known: &[&str]) -> Result<()> {
        let Some(left) = self.drivers.first() else { return Ok(()) };
        let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        Err(self.unknown(left, &known))
    }

    fn unknown(&self, parameter: &Parameter, known: &[String]) -> Error {
        let sort = if is_ours(&parameter.name) { "distlock. parameter" } else { "parameter" };
        let advice = match known {
            [] => format!("this store has no {sort}: leave it out"),
            known => format!("known here: {}", known.join(", ")),
        };
        let what = format!("{parameter} is no {sort} that is known here");
        self.refuse(what).advise(advice)
    }

    pub(crate) fn know_lock_options(&mut self) {
        self.knows_lock_options = true;
    }

    /// The error for a URL that a store cannot use. `what` says which part is wrong, without its text.
    #[must_use]
    pub fn refuse(&self, what: impl Into<String>) -> Error {
        refusal(what, EXAMPLES).on(self.to_string())
    }

    /// The error for a parameter that is not ours. `what` says what is wrong with it, without its text.
    #[must_use]
    pub fn refuse_driver(&self, name: &str, what: &str) -> Error {
        self.refuse(match self.drivers.iter().find(|parameter| parameter.name == name) {
            Some(parameter) => format!("{parameter} {what}"),
            None => format!("one of its parameters {what}"),
        })
    }

    /// The error for a value of `distlock.KEY`. `wanted` says what would be right.
    #[must_use]
    pub fn refuse_value(&self, key: &str, wanted: &str) -> Error {
        self.refuse(format!("{OURS}{key} is not {wanted}")).advise(format!("write {OURS}{key}=…, {wanted}"))
    }
}

fn refusal(what: impl Into<String>, advice: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what.into()).doing("read the store URL").advise(advice)
}

/// The scheme alone, once a store [accepted](StoreUrl::accept) it.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.accepted, self.has_authority()) {
            (false, _) => f.write_str("***"),
            (true, true) => write!(f, "{}://***", self.scheme),
            (true, false) => write!(f, "{}:***", self.scheme),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
