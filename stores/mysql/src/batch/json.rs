//! A batch of several items as a table: a variable with JSON, which the statements read.

use std::fmt::Write;
use std::sync::LazyLock;

use super::{Item, literal, push_hex, push_number};

/// The columns of a batch of claims: name, and type in JSON.
const COLUMNS: [(&str, &str); 12] = [
    ("n", "INT UNSIGNED"),
    ("k", "VARCHAR(64)"),
    ("id", "VARCHAR(4096)"),
    ("token", "BIGINT UNSIGNED"),
    ("expiry", "BIGINT"),
    ("ttl", "BIGINT"),
    ("weight", "INT UNSIGNED"),
    ("capacity", "INT UNSIGNED"),
    ("in_order", "TINYINT"),
    ("resizes", "TINYINT"),
    ("kind", "VARCHAR(32)"),
    ("name", "VARCHAR(8192)"),
];
/// A batch of leases has the first columns alone, without those that are the same in all: a process may have very many leases, and the
/// server reads each column anew in each statement.
const LEASE_COLUMNS: usize = 5;

/// The statement that hands a batch over, and the batch as a table.
pub(super) fn table(items: &[Item<'_>]) -> (String, String) {
    if items.iter().any(|item| item.makes_row) {
        return (claims(items), CLAIMS.clone());
    }
    let common = Common::of(items);
    let table = match (common.expiry, common.tokens_are_known) {
        (None, _) => LEASES[0].clone(),
        (Some(expiry), false) => LEASES[1].replace("{expiry}", &expiry.to_string()),
        (Some(expiry), true) => LEASES[2].replace("{expiry}", &expiry.to_string()),
    };
    (leases(items, &common), table.replace("{start}", &literal(common.start)))
}

/// The statements that follow a batch in its text are not longer, mostly.
const ROOM_FOR_STATEMENTS: usize = 8192;

/// What leases have in common.
struct Common<'a> {
    /// What all lock ids begin with: nearly all of each, if one process made them.
    start: &'a [u8],
    /// The expiry, if it is the same.
    expiry: Option<u64>,
    /// Their rows have their tokens already, and they have one expiry.
    tokens_are_known: bool,
}

impl<'a> Common<'a> {
    fn of(items: &[Item<'a>]) -> Self {
        let Some(first) = items.first() else {
            return Common { start: &[], expiry: None, tokens_are_known: false };
        };
        let mut start = first.id.as_bytes();
        for item in items {
            let id = item.id.as_bytes();
            if !id.starts_with(start) {
                let common = start.iter().zip(id).take_while(|(one, other)| one == other).count();
                start = &start[..common];
            }
        }
        let expiry = items.iter().all(|item| item.expiry == first.expiry).then_some(first.expiry);
        let tokens_are_known = expiry.is_some() && items.iter().all(|item| item.token_is_known);
        Common { start, expiry, tokens_are_known }
    }
}

/// The statement that hands a batch of leases over: an array of arrays; digits, quotes and brackets only. Their lock ids are without what
/// all begin with.
fn leases(items: &[Item<'_>], common: &Common<'_>) -> String {
    let start = common.start.len();
    let size: usize = items.iter().map(|item| 2 * (item.id.len() - start) + 130).sum();
    let mut text = String::with_capacity(size + ROOM_FOR_STATEMENTS);
    text.push_str("SET @distlock_batch = '[");
    for (at, item) in items.iter().enumerate() {
        text.push_str(if at > 0 { ",[" } else { "[" });
        push_number(&mut text, item.n as u64);
        text.push_str(",\"");
        push_hex(&mut text, &item.key.0);
        text.push_str("\",\"");
        push_hex(&mut text, item.id.as_bytes().get(start..).unwrap_or_default());
        text.push('"');
        if !common.tokens_are_known {
            text.push(',');
            push_number(&mut text, item.token);
        }
        if common.expiry.is_none() {
            text.push(',');
            push_number(&mut text, item.expiry);
        }
        text.push(']');
    }
    text.push_str("]';\n");
    text
}

/// The statement that hands a batch over that has claims.
fn claims(items: &[Item<'_>]) -> String {
    let size: usize = items.iter().map(least_size).sum();
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
        push_hex(&mut text, item.id.as_bytes());
        let _ = write!(
            text,
            "\",{},{},{},{},{},{},{},\"",
            item.token,
            item.expiry,
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
        text.push(']');
    }
    text.push_str("]';\n");
    text
}

/// At least how many bytes a claim becomes.
fn least_size(item: &Item<'_>) -> usize {
    2 * item.id.len() + 2 * item.resource.name().len() + 190
}

static CLAIMS: LazyLock<String> = LazyLock::new(|| json_table(&COLUMNS, &[]));
/// Leases with all columns, without an expiry of their own, and without a token as well.
static LEASES: LazyLock<[String; 3]> = LazyLock::new(|| {
    let expiry = ("expiry", "CAST({expiry} AS SIGNED)");
    // Smaller than every other one, so the row keeps its own.
    let token = ("token", "CAST(0 AS UNSIGNED)");
    [
        json_table(&COLUMNS[..LEASE_COLUMNS], &[]),
        json_table(&COLUMNS[..LEASE_COLUMNS - 1], &[expiry]),
        json_table(&COLUMNS[..LEASE_COLUMNS - 2], &[token, expiry]),
    ]
    .map(|table| table.replace("UNHEX(j.id)", "CONCAT({start}, UNHEX(j.id))"))
});

/// The batch as a table, with further columns that are the same in all rows.
fn json_table(columns: &[(&str, &str)], same: &[(&str, &str)]) -> String {
    let decoded = |name: &str| matches!(name, "k" | "id" | "kind" | "name");
    let selected: Vec<String> = columns
        .iter()
        .map(|(name, _)| match decoded(name) {
            true => format!("UNHEX(j.{name}) AS {name}"),
            false => format!("j.{name}"),
        })
        .chain(same.iter().map(|(name, value)| format!("{value} AS {name}")))
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
            let start = Common::of(&items).start.to_vec();
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

    #[test]
    fn columns_that_are_the_same_in_all_leases_are_sent_once() {
        let table_of = |leases: &[Lease]| {
            let items: Vec<Item<'_>> =
                leases.iter().enumerate().map(|(n, lease)| Item::of_lease(n, lease)).collect();
            let (before, batch) = table(&items);
            let first = before.split_once("],").unwrap().0.matches(',').count() + 1;
            (
                first,
                batch.contains("CAST(3000000 AS SIGNED) AS expiry"),
                batch.contains("CAST(0 AS UNSIGNED) AS token"),
            )
        };
        let known = |name: &str| lease(name, name).with_known_token(true);
        let longer = |lease: Lease| lease.with_expiry(std::time::Duration::from_secs(4));
        assert_eq!(table_of(&[known("a"), known("b")]), (3, true, true));
        assert_eq!(table_of(&[known("a"), lease("b", "b")]), (4, true, false), "a token from elsewhere");
        assert_eq!(table_of(&[known("a"), longer(known("b"))]), (5, false, false));
        assert_eq!(table_of(&[lease("a", "a"), longer(lease("b", "b"))]), (5, false, false));
    }

    #[test]
    fn numbers_are_written_as_they_are() {
        for number in [0, 7, 10, 123_456_789, u64::MAX] {
            let mut text = String::new();
            push_number(&mut text, number);
            assert_eq!(text, number.to_string());
        }
        let mut text = String::new();
        let bytes: Vec<u8> = (0..=255).collect();
        push_hex(&mut text, &bytes);
        assert_eq!(text, bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>());
    }
}
