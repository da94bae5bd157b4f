//! What servers say about themselves and others: roles, sentinels' answers, the slots of a Cluster.

use distlock_core::{Error, ErrorKind, Result};
use redis::Value;

use crate::config::Address;
use crate::slot::SLOTS;
use crate::trouble;

/// Refuses what ROLE answered unless it is a master.
pub(super) fn check_master(role: Option<&Value>) -> Result<()> {
    let word = match role {
        Some(Value::Array(parts)) => parts.first().and_then(text),
        // Without the right to ask, the first write will tell.
        Some(Value::ServerError(_)) => return Ok(()),
        _ => None,
    };
    match word.as_deref() {
        Some("master") => Ok(()),
        Some(other) => {
            Err(Error::new(ErrorKind::Unavailable, format!("the server is no master but a {other}"))
                .advise("wait for the fail-over"))
        }
        None => Err(trouble::nonsense(role)),
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

/// The address in what `SENTINEL GET-MASTER-ADDR-BY-NAME` answered; `None` if it knows no such master.
pub(super) fn master_address(answer: &Value) -> Option<Address> {
    match answer {
        Value::Array(parts) => match parts.as_slice() {
            [host, number] => Some(Address::Tcp(text(host)?, port(number)?)),
            _ => None,
        },
        _ => None,
    }
}

/// Which master has which slots.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotTable {
    pub(super) masters: Vec<Address>,
    /// For each slot the number of its master in `masters`.
    owners: Vec<Option<u16>>,
}

impl SlotTable {
    /// Reads what `CLUSTER SLOTS` answered to a question over this host. A node may name itself by no host at all:
    /// then it is the one we asked.
    pub(super) fn read(answer: &Value, asked: &Address) -> Option<SlotTable> {
        let Value::Array(ranges) = answer else { return None };
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
                table.give(u16::try_from(slot).ok()?, &address);
            }
        }
        Some(table)
    }

    /// From now on this master has this slot.
    pub(super) fn give(&mut self, slot: u16, address: &Address) {
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

/// Where the text of a MOVED or ASK error points: `MOVED 3999 127.0.0.1:6381`. An empty host means the one asked.
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
    fn slots_of_a_cluster_whose_nodes_do_not_know_their_own_host() {
        let node = |host: &str, port| Value::Array(vec![bulk(host), Value::Int(port), bulk("id")]);
        let answer = Value::Array(vec![
            Value::Array(vec![Value::Int(0), Value::Int(99), node("", 7001), node("10.0.0.2", 7002)]),
            Value::Array(vec![Value::Int(100), Value::Int(16_383), node("10.0.0.3", 7003)]),
        ]);
        let asked = Address::Tcp("seed".to_owned(), 7000);
        let mut table = SlotTable::read(&answer, &asked).unwrap();
        assert_eq!(table.master_of(99), Some(&Address::Tcp("seed".to_owned(), 7001)));
        assert_eq!(table.master_of(100), Some(&Address::Tcp("10.0.0.3".to_owned(), 7003)));
        let (slot, moved) = redirection("MOVED 100 [::1]:7009", &asked).unwrap();
        table.give(slot, &moved);
        assert_eq!(table.master_of(100), Some(&Address::Tcp("::1".to_owned(), 7009)));
        assert_eq!(redirection("ASK 5 :7004", &asked).unwrap().1, Address::Tcp("seed".to_owned(), 7004));
    }
}
