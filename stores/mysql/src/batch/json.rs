//! A batch of several items as a table: a variable with JSON, which the statements read.

use std::fmt::Write;
use std::sync::LazyLock;

use super::{Item, literal, push_hex};

/// The columns of a batch of claims: name, and type in JSON.
const COLUMNS: [(&str, &str); 12] = [
    ("n", "INT UNSIGNED"),
    ("k", "VARCHAR(64)"),
    ("id", "VARCHAR(4096)"),
    ("expiry", "BIGINT"),
    ("token", "BIGINT UNSIGNED"),
    ("ttl", "BIGINT"),
    ("weight", "INT UNSIGNED"),
    ("capacity", "INT UNSIGNED"),
    ("in_order", "TINYINT"),
    ("resizes", "TINYINT"),
    ("kind", "VARCHAR(32)"),
    ("name", "VARCHAR(8192)"),
];
/// A batch of leases has the first columns alone: a process may have very many leases, and the server reads each column anew in each
/// statement.
const LEASE_COLUMNS: usize = 5;

/// The statement that hands a batch over, and the batch as a table.
pub(super) fn table(items: &[Item<'_>]) -> (String, String) {
    if items.iter().any(|item| item.makes_row) {
        return (set_batch(items, None), CLAIMS.clone());
    }
    let start = common_start(items);
    (set_batch(items, Some(start)), LEASES.replace("{start}", &literal(start)))
}

/// The statements that follow a batch in its text are not longer, mostly.
const ROOM_FOR_STATEMENTS: usize = 8192;

/// What all lock ids begin with: nearly all of each, if one process made them.
fn common_start<'a>(items: &[Item<'a>]) -> &'a [u8] {
    let Some(first) = items.first() else { return &[] };
    let mut start = first.id.as_bytes();
    for item in items {
        let id = item.id.as_bytes();
        if !id.starts_with(start) {
            let common = start.iter().zip(id).take_while(|(one, other)| one == other).count();
            start = &start[..common];
        }
    }
    start
}

/// The statement that hands a batch over: an array of arrays; digits, quotes and brackets only. Leases have few columns, and their
/// lock ids no `start`.
fn set_batch(items: &[Item<'_>], start: Option<&[u8]>) -> String {
    let are_claims = start.is_none();
    let start = start.unwrap_or_default().len();
    let size: usize = items.iter().map(|item| least_size(item, are_claims)).sum();
    let mut text = String::with_capacity(size + ROOM_FOR_STATEMENTS);
    text.push_str("SET @distlock_batch = '[");
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        // Writing to a string does not fail.
        let _ = write!(text, "[{},\"", item.n);
        push_hex(&mut text, &item.key.0);
        text.push_str("\",\"");
        push_hex(&mut text, item.id.as_bytes().get(start..).unwrap_or_default());
        let _ = write!(text, "\",{},{}", item.expiry, item.token);
        if are_claims {
            let _ = write!(
                text,
                ",{},{},{},{},{},\"",
                item.ttl,
                item.weight,
                item.capacity,
                u8::from(item.in_order),
                u8::from(item.resizes),
            );
            if item.makes_row {
                push_hex(&mut text, item.resource.kind().as_str().as_bytes());
                text.push_str("\",\"");
                push_hex(&mut text, item.resource.name().as_bytes());
                text.push('"');
            } else {
                text.push_str("\",\"\"");
            }
        }
        text.push(']');
    }
    text.push_str("]';\n");
    text
}

/// At least how many bytes an item becomes.
fn least_size(item: &Item<'_>, is_claim: bool) -> usize {
    let name = if is_claim { 2 * item.resource.name().len() + 60 } else { 0 };
    2 * item.id.len() + 130 + name
}

static CLAIMS: LazyLock<String> = LazyLock::new(|| json_table(&COLUMNS));
static LEASES: LazyLock<String> = LazyLock::new(|| {
    json_table(&COLUMNS[..LEASE_COLUMNS]).replace("UNHEX(j.id)", "CONCAT({start}, UNHEX(j.id))")
});

/// The batch as a table.
fn json_table(columns: &[(&str, &str)]) -> String {
    let decoded = |name: &str| matches!(name, "k" | "id" | "kind" | "name");
    let selected: Vec<String> = columns
        .iter()
        .map(|(name, _)| match decoded(name) {
            true => format!("UNHEX(j.{name}) AS {name}"),
            false => format!("j.{name}"),
        })
        .collect();
    let columns: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(at, (name, kind))| format!("{name} {kind} PATH '$[{at}]'"))
        .collect();
    format!(
        "(SELECT {} FROM JSON_TABLE(@distlock_batch, '$[*]' COLUMNS ({})) j)",
        selected.join(", "),
        columns.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use distlock_core::store::Lease;

    use super::super::tests::lease;
    use super::*;

    #[test]
    fn leases_say_once_what_their_lock_ids_begin_with() {
        let start_of = |ids: &[&str]| {
            let leases: Vec<Lease> = ids.iter().map(|id| lease(id, id)).collect();
            let items: Vec<Item<'_>> =
                leases.iter().enumerate().map(|(n, lease)| Item::of_lease(n, lease)).collect();
            let (before, batch) = table(&items);
            let text = before + &batch;
            let start = common_start(&items).to_vec();
            assert!(text.contains(&format!("CONCAT({}, UNHEX(j.id)) AS id", literal(&start))), "{text}");
            for id in ids {
                let mut rest = String::from("\"");
                push_hex(&mut rest, &id.as_bytes()[start.len()..]);
                assert!(text.contains(&(rest + "\"")), "{text}");
            }
            String::from_utf8_lossy(&start).into_owned()
        };
        assert_eq!(start_of(&["web:1#a-1", "web:1#a-2", "web:1#a-1f"]), "web:1#a-");
        // One id begins another one; ids that we do not know; half of a character is common.
        assert_eq!(start_of(&["id-12", "id-1"]), "id-1");
        assert_eq!(start_of(&["x", "y"]), "");
        assert_eq!(start_of(&["é", "è"]).chars().count(), 1);
    }
}
