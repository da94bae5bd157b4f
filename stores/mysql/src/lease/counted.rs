//! The answer to a renewal: how many leases were renewed, and which. One row, however many there are.

use std::collections::HashSet;

use distlock_core::Result;
use distlock_core::store::support::errors::unexpected_reply;
use mysql_async::Row;

use crate::batch::Item;
use crate::rows::{optional, required, text};

/// The places of the items that were counted. If all were, which is nearly always so, the places of the reply are not read.
pub(super) fn counted(sent: &[Item<'_>], rows: &[Row]) -> Result<Vec<usize>> {
    let [row] = rows else { return Err(unexpected_reply(format!("{} rows instead of one", rows.len()))) };
    let count: usize = required(row, "renewed")?;
    let all = || sent.iter().map(|item| item.n);
    if count == sent.len() {
        return Ok(all().collect());
    }
    let places = match optional::<Vec<u8>>(row, "places")? {
        None => String::new(),
        Some(_) => text(row, "places")?,
    };
    places_of(&places, count, &all().collect())
}

/// Reads a list of places. It is believed if it has as many places as were counted, all of them of items that were sent: a list
/// that was cut short may end with the beginning of another number.
fn places_of(text: &str, count: usize, sent: &HashSet<usize>) -> Result<Vec<usize>> {
    let listed: Option<HashSet<usize>> =
        text.split(',').filter(|place| !place.is_empty()).map(|place| place.parse().ok()).collect();
    match listed {
        Some(listed) if listed.len() == count && listed.is_subset(sent) => Ok(listed.into_iter().collect()),
        _ => Err(unexpected_reply(format!("{count} renewals that are not those that were sent"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str, count: usize, sent: usize) -> Option<Vec<usize>> {
        let mut places = places_of(text, count, &(0..sent).collect()).ok()?;
        places.sort_unstable();
        Some(places)
    }

    #[test]
    fn a_list_that_does_not_agree_with_its_count_renews_nothing() {
        assert_eq!(places("", 0, 3), Some(vec![]));
        assert_eq!(places("2,0", 2, 3), Some(vec![0, 2]));
        for (text, count) in [("", 1), ("1", 0), ("1", 2), ("1,1", 2), ("1,3", 2), ("1,x", 2), ("1,-1", 2)] {
            assert_eq!(places(text, count, 3), None, "{text:?}, {count}");
        }
        // Cut short in the middle of 12: the list is not one of two places.
        assert_eq!(places("10,1", 3, 20), None);
    }
}
