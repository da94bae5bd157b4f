//! What stands between `//` and the path: logins, hosts and ports.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use super::values::{Fault, decode, decode_text, is_plain, ordinal, to_path};

/// User and password of a URL, decoded.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    user: Option<String>,
    password: Option<Vec<u8>>,
}

impl Login {
    /// The user, unless it is empty.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, unless it is empty. Some servers have passwords that are not UTF-8.
    #[must_use]
    pub fn password(&self) -> Option<&[u8]> {
        self.password.as_deref()
    }
}

/// Neither of them: a password may stand in the place of the user.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(***)")
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name or an address; of IPv6 without the brackets.
    Name(String),
    /// A Unix socket, or the folder that it is in.
    Socket(PathBuf),
}

impl Host {
    /// A host that is the value of a parameter: a name, an address without brackets, or the absolute path of a socket.
    #[must_use]
    pub fn of_value(text: &str) -> Option<Host> {
        if text.starts_with('/') {
            return Some(Host::Socket(text.into()));
        }
        let is_host = text.parse::<IpAddr>().is_ok() || (text.is_ascii() && is_plain(text));
        is_host.then(|| Host::Name(text.to_owned()))
    }
}

/// A host and the port, if one is given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: Option<u16>,
}

/// The servers of a URL and the login that is meant for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// The login, if there is an `@`.
    pub login: Option<Login>,
    /// The servers, in order.
    pub servers: Vec<Server>,
}

/// `user:password@h1:p1,h2:p2`.
pub(super) fn one_login(authority: &str) -> Result<Authority, String> {
    if authority.is_empty() {
        return Ok(Authority::default());
    }
    let (login, hosts) = match authority.split_once('@') {
        Some((_, hosts)) if hosts.contains('@') => {
            return Err("there is more than one @ before its path".to_owned());
        }
        Some((login, hosts)) => (Some(read_login(login)?), hosts),
        None => (None, authority),
    };
    let servers = hosts.split(',').enumerate().map(|(place, text)| server(place, text));
    Ok(Authority { login, servers: servers.collect::<Result<_, _>>()? })
}

/// `user:password@h1:p1,user:password@h2:p2`.
pub(super) fn logins_each(authority: &str) -> Result<Vec<(Option<Login>, Server)>, String> {
    if authority.is_empty() {
        return Ok(Vec::new());
    }
    let pieces: Vec<&str> = authority.split(',').collect();
    let first = pieces.first().is_some_and(|piece| piece.contains('@'));
    if !first && authority.contains('@') {
        return Err("a login stands before another host than the first, or has a comma in it".to_owned());
    }
    let read = |(place, piece): (usize, &&str)| match piece.split_once('@') {
        Some((_, host)) if host.contains('@') => {
            Err(format!("there is more than one @ before the {} host", ordinal(place)))
        }
        Some((login, host)) => Ok((Some(read_login(login)?), server(place, host)?)),
        None => Ok((None, server(place, piece)?)),
    };
    pieces.iter().enumerate().map(read).collect()
}

fn read_login(text: &str) -> Result<Login, String> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let user = decode_text(user).map_err(|fault| format!("the user {fault}"))?;
    let password = decode(password).map_err(|fault| format!("the password {fault}"))?;
    Ok(Login {
        user: Some(user).filter(|user| !user.is_empty()),
        password: Some(password).filter(|password| !password.is_empty()),
    })
}

fn server(place: usize, text: &str) -> Result<Server, String> {
    let number = ordinal(place);
    let text = text.trim_matches(' ');
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) =
                rest.split_once(']').ok_or_else(|| format!("the address of the {number} host has no ]"))?;
            if !after.is_empty() && !after.starts_with(':') {
                return Err(format!("something stands between the {number} host and its port"));
            }
            (
                ipv6(address).ok_or_else(|| format!("the {number} host is no IPv6 address"))?,
                after.strip_prefix(':'),
            )
        }
        None => {
            let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
            let wrong = |what: Fault| format!("the {number} host {what}");
            (name_or_socket(name).map_err(wrong)?, port)
        }
    };
    let port = match port {
        None => None,
        Some(digits) => {
            let number =
                digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
            Some(number.filter(|port| *port != 0).ok_or_else(|| {
                format!("the port of the {} host is not a number from 1 to 65535", ordinal(place))
            })?)
        }
    };
    Ok(Server { host, port })
}

fn ipv6(text: &str) -> Option<Host> {
    // A zone, as in fe80::1%25eth0.
    let (address, zone) =
        text.split_once("%25").map_or((text, None), |(address, zone)| (address, Some(zone)));
    let address: Ipv6Addr = address.parse().ok()?;
    match zone {
        None => Some(Host::Name(address.to_string())),
        Some(zone) if is_plain(zone) => Some(Host::Name(format!("{address}%{zone}"))),
        Some(_) => None,
    }
}

fn name_or_socket(text: &str) -> Result<Host, Fault> {
    let is_socket = text.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("%2f"));
    if is_socket {
        return to_path(decode(text)?).map(Host::Socket).ok_or(Fault::NotUtf8);
    }
    if text.is_empty() {
        return Err(Fault::Empty);
    }
    if !text.is_ascii() || !is_plain(text) {
        return Err(Fault::NotAHost);
    }
    Ok(Host::Name(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str, port: impl Into<Option<u16>>) -> Server {
        Server { host: Host::Name(text.to_owned()), port: port.into() }
    }

    #[test]
    fn hosts_ports_addresses_and_sockets_are_read() {
        let read = |text: &str| one_login(text).unwrap().servers;
        assert_eq!(
            read("a,b-1.example:65535, c_d"),
            [name("a", None), name("b-1.example", 65535), name("c_d", None)]
        );
        assert_eq!(read("[::1]:7,[fe80::1%25eth0]"), [name("::1", 7), name("fe80::1%eth0", None)]);
        let socket = Server { host: Host::Socket("/run/pg sql".into()), port: Some(5433) };
        assert_eq!(read("%2Frun%2fpg%20sql:5433"), [socket]);
        assert_eq!(one_login("").unwrap(), Authority::default());
        for (text, host) in [("/run/x", Host::Socket("/run/x".into())), ("::1", Host::Name("::1".into()))] {
            assert_eq!(Host::of_value(text), Some(host));
        }
        assert_eq!(
            (Host::of_value("secret@h"), Host::of_value(""), Host::of_value("a:1")),
            (None, None, None)
        );
    }

    #[test]
    fn a_login_is_decoded_once_and_an_empty_part_is_none() {
        let login = |text: &str| one_login(text).unwrap().login.unwrap();
        let full = login("u%40x:p%2540:%0A,y@h");
        assert_eq!((full.user(), full.password()), (Some("u@x"), Some(&b"p%40:\n,y"[..])));
        assert_eq!(login(":%ff@h").password(), Some(&b"\xff"[..]));
        assert_eq!(
            (login("u@h").password(), login(":@h").user(), login(":@h").password()),
            (None, None, None)
        );
        assert_eq!(format!("{:?}", login("u:p@h")), "Login(***)");
    }

    #[test]
    fn each_server_of_a_list_may_have_a_login_if_the_first_has_one() {
        let read = |text: &str| logins_each(text).unwrap();
        let users = |text: &str| -> Vec<Option<String>> {
            read(text).iter().map(|(login, _)| login.as_ref()?.user().map(str::to_owned)).collect()
        };
        assert_eq!(users("u:p@a:1,b,w:p@c"), [Some("u".to_owned()), None, Some("w".to_owned())]);
        assert_eq!(users("@a,w:p@c"), [None, Some("w".to_owned())]);
        for bad in ["a,u:p@b", "u:p@a,v:p@w@b", "u:1,2@b"] {
            assert!(logins_each(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_host_no_port_or_no_escape_is_refused_without_its_text() {
        for bad in [
            "secret@secret@h",
            "h:secret",
            "h:0",
            "h:65536",
            "h:",
            "h:+1",
            "h:1:secret",
            ",h",
            "h,",
            ":1",
            "secret h",
            "secret!",
            "s%65cret",
            "h\u{e4}",
            "[secret]",
            "[::1",
            "[::1]secret",
            "[::1%25secret!]",
            "%2Fsecret%00",
            "u:secret%@h",
            "u:secret%4@h",
            "u:secret%zz@h",
            "u%ffsecret:p@h",
            "u:secret%00@h",
            "u@",
            "%2f%secret",
        ] {
            let error = one_login(bad).unwrap_err();
            assert!(!error.contains("secret") && !error.is_empty(), "{bad}: {error}");
        }
    }
}
