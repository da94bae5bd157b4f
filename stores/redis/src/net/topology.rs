//! Parses what servers reply about roles and topology: ROLE, the master that a sentinel names, the slots of a Cluster.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use redis::Value;

use crate::config::Address;
use crate::hash_slot::SLOTS;

/// Checks the reply to ROLE: an error unless the server is a master.
pub(crate) fn check_master(role: Option<&Value>) -> Result<()> {
    let word = match role {
        Some(Value::Array(parts)) => parts.first().and_then(text),
        // Without the right to use ROLE, the first write decides.
        Some(Value::ServerError(_)) => return Ok(()),
        _ => None,
    };
    match word.as_deref() {
        Some("master") => Ok(()),
        Some(other) => {
            Err(Error::new(ErrorKind::Unavailable, format!("the server is a {other}, not a master"))
                .advise("wait for the fail-over"))
        }
        None => Err(errors::unexpected_reply(role)),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn port(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        other => text(other)?.parse().ok(),
    }
}

/// The address in the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`; `None` if the sentinel knows no such master.
pub(super) fn master_address(reply: &Value) -> Option<Address> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [host, number] => Some(Address::Tcp(text(host)?, port(number)?)),
            _ => None,
        },
        _ => None,
    }
}

/// Which master serves which hash slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotTable {
    pub(super) masters: Vec<Address>,
    /// For each slot the index of its master in `masters`.
    owners: Vec<Option<u16>>,
}

impl SlotTable {
    /// Parses the reply of the node at `asked` to `CLUSTER SLOTS`. A node that does not know its own host leaves it empty.
    pub(super) fn parse(reply: &Value, asked: &Address) -> Option<SlotTable> {
        let Value::Array(ranges) = reply else { return None };
        let mut table = SlotTable { masters: Vec::new(), owners: vec![None; usize::from(SLOTS)] };
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
                return None;
            };
            let host = master.first().and_then(text).filter(|host| !host.is_empty() && host != "?");
            let host = match (host, asked) {
                (Some(host), _) => host,
                (None, Address::Tcp(host, _)) => host.clone(),
                (None, Address::Unix(_)) => return None,
            };
            let address = Address::Tcp(host, port(master.get(1)?)?);
            for slot in *first..=*last {
                table.assign(u16::try_from(slot).ok()?, &address);
            }
        }
        Some(table)
    }

    /// Assigns a slot to a master.
    pub(super) fn assign(&mut self, slot: u16, address: &Address) {
        let known = self.masters.iter().position(|other| other == address);
        let number = known.unwrap_or_else(|| {
            self.masters.push(address.clone());
            self.masters.len() - 1
        });
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = u16::try_from(number).ok();
        }
    }

    pub(super) fn master_of(&self, slot: u16) -> Option<&Address> {
        let owner = self.owners.get(usize::from(slot)).copied().flatten()?;
        self.masters.get(usize::from(owner))
    }
}

/// The masters in a reply to `CLUSTER SLOTS`, if it names all of them by their hosts.
#[cfg(feature = "cluster-async")]
pub(crate) fn masters_of(reply: &Value) -> Option<Vec<Address>> {
    SlotTable::parse(reply, &Address::Unix(std::path::PathBuf::new())).map(|table| table.masters)
}

/// The target of a MOVED or ASK error: `MOVED 3999 127.0.0.1:6381`. An empty host is the one of `asked`.
pub(super) fn redirection(text: &str, asked: &Address) -> Option<(u16, Address)> {
    let mut words = text.split_ascii_whitespace().skip(1);
    let slot = words.next()?.parse().ok()?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match (host, asked) {
        ("" | "?", Address::Tcp(host, _)) => host,
        ("" | "?", Address::Unix(_)) => return None,
        (host, _) => host,
    };
    Some((slot, Address::Tcp(host.to_owned(), port.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn nodes_that_do_not_know_their_own_host_are_found_at_the_host_asked() {
        let node = |host: &str, port| Value::Array(vec![bulk(host), Value::Int(port), bulk("id")]);
        let reply = Value::Array(vec![
            Value::Array(vec![Value::Int(0), Value::Int(99), node("", 7001), node("10.0.0.2", 7002)]),
            Value::Array(vec![Value::Int(100), Value::Int(16_383), node("10.0.0.3", 7003)]),
        ]);
        let asked = Address::Tcp("seed".to_owned(), 7000);
        let mut table = SlotTable::parse(&reply, &asked).unwrap();
        assert_eq!(table.master_of(99), Some(&Address::Tcp("seed".to_owned(), 7001)));
        assert_eq!(table.master_of(100), Some(&Address::Tcp("10.0.0.3".to_owned(), 7003)));
        let (slot, moved) = redirection("MOVED 100 [::1]:7009", &asked).unwrap();
        table.assign(slot, &moved);
        assert_eq!(table.master_of(100), Some(&Address::Tcp("::1".to_owned(), 7009)));
        assert_eq!(redirection("ASK 5 :7004", &asked).unwrap().1, Address::Tcp("seed".to_owned(), 7004));
    }
}
