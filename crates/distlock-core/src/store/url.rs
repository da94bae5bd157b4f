//! Store URLs: the driver's own text, and beside it our `distlock.` parameters. A password never shows.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result};

/// A store URL, split into what is the driver's and what is ours.
///
/// ```
/// let url = distlock_core::store::StoreUrl::parse("redis://u:secret@db:6379/1?distlock.prefix=app%3A&tls=1")?;
/// assert_eq!(url.scheme(), "redis");
/// assert_eq!(url.driver_part(), "redis://u:secret@db:6379/1?tls=1");
/// assert_eq!(url.to_string(), "redis://u:***@db:6379/1?tls=1");
/// # Ok::<(), distlock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct StoreUrl {
    scheme: String,
    driver_part: String,
    parameters: BTreeMap<String, String>,
}

const OURS: &str = "distlock.";

impl StoreUrl {
    /// Splits a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there is no scheme, or a parameter of ours stands there twice or is not
    /// UTF-8 after decoding.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |what: String| {
            Err(Error::new(ErrorKind::InvalidInput, what)
                .doing("read the store URL")
                .advise("write it like redis://host:6379 or file:///var/lock/app"))
        };
        let Some((scheme, _)) = text.split_once(':') else {
            return bad(format!("{:?} has no scheme", redact(text)));
        };
        let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !well_formed {
            return bad(format!("{:?} does not begin with a scheme", redact(text)));
        }
        let (base, query) = match text.split_once('?') {
            Some((base, query)) => (base, Some(query)),
            None => (text, None),
        };
        let mut parameters = BTreeMap::new();
        let mut others = Vec::new();
        for pair in query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(key) = key.strip_prefix(OURS) else {
                others.push(pair);
                continue;
            };
            let Ok(value) = percent_decode_str(value).decode_utf8() else {
                return bad(format!("the value of {OURS}{key} is not UTF-8"));
            };
            if parameters.insert(key.to_owned(), value.into_owned()).is_some() {
                return bad(format!("{OURS}{key} stands there twice"));
            }
        }
        let driver_part =
            if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        Ok(StoreUrl { scheme: scheme.to_ascii_lowercase(), driver_part, parameters })
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The URL without our parameters, password included: for the driver, never for people.
    #[must_use]
    pub fn driver_part(&self) -> &str {
        &self.driver_part
    }

    /// What follows `scheme:` without the query, password included.
    #[must_use]
    pub fn rest(&self) -> &str {
        let rest = &self.driver_part[self.scheme.len() + 1..];
        rest.split_once('?').map_or(rest, |(rest, _)| rest)
    }

    /// Takes the value of `distlock.KEY` out.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.parameters.remove(key)
    }

    /// To be called when all known parameters were taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if any is left; `known` names those there are.
    pub fn refuse_unknown(&self, known: &[&str]) -> Result<()> {
        let Some(key) = self.parameters.keys().next() else { return Ok(()) };
        let advice = if known.is_empty() {
            "this store has none: leave it out".to_owned()
        } else {
            let known: Vec<String> = known.iter().map(|key| format!("{OURS}{key}")).collect();
            format!("known here: {}", known.join(", "))
        };
        Err(Error::new(ErrorKind::InvalidInput, format!("unknown parameter {OURS}{key}"))
            .doing("read the store URL")
            .on(self.to_string())
            .advise(advice))
    }
}

/// The URL with every password replaced, and without our parameters.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.driver_part))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hides what may be a password: between the first colon of the user part and the last `@`, also where the
/// password holds characters that should have been escaped; and in query parameters that sound like one.
fn redact(text: &str) -> String {
    let (base, query) = match text.split_once('?') {
        // A question mark before the last @ belongs to an unescaped password.
        Some(_) if text.rfind('@') > text.find('?') => (text, None),
        Some((base, query)) => (base, Some(query)),
        None => (text, None),
    };
    let start = base.find("://").map_or(0, |at| at + 3);
    let mut shown = match base[start..].rfind('@') {
        Some(at) => {
            let user = &base[start..start + at];
            let user =
                user.split_once(':').map_or_else(|| user.to_owned(), |(name, _)| format!("{name}:***"));
            format!("{}{user}{}", &base[..start], &base[start + at..])
        }
        None => base.to_owned(),
    };
    if let Some(query) = query {
        let pairs = query.split('&').map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let low = key.to_ascii_lowercase();
            let secret =
                ["pass", "pwd", "secret", "token", "key", "auth"].iter().any(|word| low.contains(word));
            if secret && !value.is_empty() { format!("{key}=***") } else { pair.to_owned() }
        });
        shown.push('?');
        shown.push_str(&pairs.collect::<Vec<_>>().join("&"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_shows_however_it_is_written() {
        for url in [
            "redis://u:s3cret@h:1/0",
            "redis://:s3cret@h:1",
            "postgres://u:a@s3cret:/?#x@h/db",
            "mongodb://u:s3cret@a:1,b:2/db?replicaSet=r&password=s3cret",
            "redlock://u:s3cret@a:1,u:s3cret@b:2",
            "mysql://h/db?PWD=s3cret&ssl-key=s3cret",
        ] {
            let url = StoreUrl::parse(url).unwrap();
            assert!(!format!("{url} {url:?}").contains("s3cret"), "{url}");
        }
        assert!(
            !StoreUrl::parse("user:s3cret@h")
                .map_or_else(|e| e.to_string(), |u| u.to_string())
                .contains("s3cret")
        );
    }

    #[test]
    fn our_parameters_are_taken_and_unknown_ones_refused() {
        let mut url = StoreUrl::parse("file:///d?distlock.mode=a%20b&x=1&distlock.oops=1").unwrap();
        assert_eq!(url.take("mode").as_deref(), Some("a b"));
        assert_eq!(url.rest(), "///d");
        let error = url.refuse_unknown(&["mode"]).unwrap_err().to_string();
        assert!(error.contains("distlock.oops") && error.contains("distlock.mode"), "{error}");
    }

    #[test]
    fn bad_urls_are_refused() {
        for bad in ["", "localhost", "://x", "1redis://h", "file:?distlock.a=1&distlock.a=2"] {
            assert_eq!(StoreUrl::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }
}
