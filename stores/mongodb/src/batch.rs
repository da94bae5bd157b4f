//! A request of many items that goes different ways, and comes back in its own order.

use std::collections::BTreeMap;

use distlock_core::{Error, Result};

/// The places of items, by whether something is true of them.
pub(crate) fn partition<T>(items: &[T], is_so: impl Fn(&T) -> bool) -> (Vec<usize>, Vec<usize>) {
    (0..items.len()).partition(|at| is_so(&items[*at]))
}

/// The items at these places.
pub(crate) fn pick<'a, T: ?Sized>(items: &[&'a T], places: &[usize]) -> Vec<&'a T> {
    places.iter().map(|at| items[*at]).collect()
}

/// Answers of two parts, each with the places of its items, in the order of the request.
pub(crate) fn merge<T>(first: (Vec<usize>, Vec<T>), second: (Vec<usize>, Vec<T>)) -> Vec<T> {
    if second.0.is_empty() {
        return first.1;
    }
    if first.0.is_empty() {
        return second.1;
    }
    let mut all: Vec<(usize, T)> =
        first.0.into_iter().zip(first.1).chain(second.0.into_iter().zip(second.1)).collect();
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, answer)| answer).collect()
}

/// The places of items in portions of at most `most`, each of items that share a key.
pub(crate) fn portions<T, K: Ord>(items: &[&T], most: usize, key: impl Fn(&T) -> K) -> Vec<Vec<usize>> {
    let mut by_key: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        by_key.entry(key(item)).or_default().push(at);
    }
    by_key.values().flat_map(|places| places.chunks(most)).map(<[usize]>::to_vec).collect()
}

/// One error for each of many.
pub(crate) fn all_failed<T>(error: &Error, count: usize) -> Vec<Result<T>> {
    std::iter::repeat_with(|| Err(error.clone())).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_in_the_order_of_the_request() {
        let items = [5, 2, 8, 1];
        let (even, odd) = partition(&items, |n| n % 2 == 0);
        assert_eq!((&even[..], &odd[..]), (&[1, 2][..], &[0, 3][..]));
        assert_eq!(merge((even, vec![2, 8]), (odd, vec![5, 1])), items);
        assert_eq!(merge((vec![], vec![]), (vec![0], vec!["only"])), ["only"]);
    }

    #[test]
    fn portions_are_small_and_of_one_key() {
        let items = [30, 31, 20, 32, 33];
        let items: Vec<&i32> = items.iter().collect();
        assert_eq!(portions(&items, 3, |n| *n / 10), [vec![2], vec![0, 1, 3], vec![4]]);
    }
}
