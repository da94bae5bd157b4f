//! The parameters of a store URL.

use std::fmt;

use super::values::{self, decode_text, ordinal};
use super::{ESCAPES, authority, refusal};
use crate::error::Result;

/// The beginning of our names.
pub(super) const OURS: &str = "distlock.";

#[derive(Clone)]
pub(super) struct Parameter {
    /// Where it stands in the query: the first is 0.
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) value: String,
    /// Errors show its name.
    pub(super) is_named: bool,
}

/// Takes the first value out whose name is wanted.
pub(super) fn take(parameters: &mut Vec<Parameter>, wanted: impl Fn(&str) -> bool) -> Option<String> {
    let at = parameters.iter().position(|parameter| wanted(&parameter.name))?;
    Some(parameters.remove(at).value)
}

/// Our parameters and the others.
pub(super) fn parameters(query: &str) -> Result<(Vec<Parameter>, Vec<Parameter>)> {
    let (mut ours, mut drivers): (Vec<Parameter>, Vec<Parameter>) = (Vec::new(), Vec::new());
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    for (place, pair) in pairs.enumerate() {
        let number = ordinal(place);
        let bad = |what: String| refusal(what, ESCAPES);
        let Some((name, value)) = pair.split_once('=') else {
            return Err(bad(format!("its {number} parameter is not a name and a value")));
        };
        let name =
            decode_text(name).map_err(|fault| bad(format!("the name of its {number} parameter {fault}")))?;
        let value = decode_text(value)
            .map_err(|fault| bad(format!("the value of its {number} parameter {fault}")))?;
        if !name.is_ascii() || !values::is_plain(&name) {
            return Err(bad(format!(
                "the name of its {number} parameter is not made of letters, digits, . - and _"
            )));
        }
        if ours.iter().chain(&drivers).any(|other| other.name.eq_ignore_ascii_case(&name)) {
            return Err(bad(format!("its {number} parameter has the name of an earlier one"))
                .advise("say it once: the second would undo what the first one asks for"));
        }
        let list = if is_ours(&name) { &mut ours } else { &mut drivers };
        list.push(Parameter { place, name, value, is_named: false });
    }
    Ok((ours, drivers))
}

/// Decides which parameters are named in errors. A name is not secret, but a piece of a password looks like one if the
/// password was not escaped: then an `@` follows, or the login is not well-formed, or a parameter with a secret precedes.
pub(super) fn name_where_safe(parameters: &mut [&mut Parameter], authority: &str) {
    const SECRETIVE: [&str; 8] = ["pass", "pwd", "secret", "token", "key", "auth", "cred", "user"];
    const LONGEST: usize = 40;
    let has_at = parameters.iter().any(|parameter| parameter.value.contains('@'));
    if has_at || authority::one_login(authority).is_err() {
        return;
    }
    for parameter in parameters {
        parameter.is_named = parameter.name.len() <= LONGEST;
        let name = parameter.name.to_ascii_lowercase();
        if SECRETIVE.iter().any(|word| name.contains(word)) {
            return;
        }
    }
}

/// `its parameter "bogus"`, or `its first parameter` where the name may be a piece of a password.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_named {
            write!(f, "its parameter {:?}", self.name)
        } else {
            write!(f, "its {} parameter", ordinal(self.place))
        }
    }
}

/// In another case it is no name that we know, and no driver's either.
pub(super) fn is_ours(name: &str) -> bool {
    name.get(..OURS.len()).is_some_and(|start| start.eq_ignore_ascii_case(OURS))
}
