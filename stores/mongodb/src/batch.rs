//! Batches whose items go different ways, and whose answers return in the order of the request.

use std::collections::BTreeMap;

use distlock_core::{Error, Result};

/// The indices of items, by a condition.
pub(crate) fn partition<T>(items: &[T], condition: impl Fn(&T) -> bool) -> (Vec<usize>, Vec<usize>) {
    (0..items.len()).partition(|index| condition(&items[*index]))
}

/// The items at these indices.
pub(crate) fn pick<'a, T: ?Sized>(items: &[&'a T], indices: &[usize]) -> Vec<&'a T> {
    indices.iter().map(|index| items[*index]).collect()
}

/// The answers of two parts, each with the indices of its items, in the order of the request.
pub(crate) fn merge<T>(first: (Vec<usize>, Vec<T>), second: (Vec<usize>, Vec<T>)) -> Vec<T> {
    if second.0.is_empty() {
        return first.1;
    }
    if first.0.is_empty() {
        return second.1;
    }
    let mut all: Vec<(usize, T)> =
        first.0.into_iter().zip(first.1).chain(second.0.into_iter().zip(second.1)).collect();
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, answer)| answer).collect()
}

/// The indices of items in chunks of at most `size`, each of items that share a key.
pub(crate) fn chunks<T, K: Ord>(items: &[&T], size: usize, key: impl Fn(&T) -> K) -> Vec<Vec<usize>> {
    let mut by_key: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        by_key.entry(key(item)).or_default().push(index);
    }
    by_key.values().flat_map(|indices| indices.chunks(size)).map(<[usize]>::to_vec).collect()
}

/// The same error for every item.
pub(crate) fn fail_all<T>(error: &Error, count: usize) -> Vec<Result<T>> {
    std::iter::repeat_with(|| Err(error.clone())).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_return_in_the_order_of_the_request() {
        let items = [5, 2, 8, 1];
        let (even, odd) = partition(&items, |n| n % 2 == 0);
        assert_eq!((&even[..], &odd[..]), (&[1, 2][..], &[0, 3][..]));
        assert_eq!(merge((even, vec![2, 8]), (odd, vec![5, 1])), items);
        assert_eq!(merge((vec![], vec![]), (vec![0], vec!["only"])), ["only"]);
    }

    #[test]
    fn chunks_are_small_and_of_one_key() {
        let items = [30, 31, 20, 32, 33];
        let items: Vec<&i32> = items.iter().collect();
        assert_eq!(chunks(&items, 3, |n| *n / 10), [vec![2], vec![0, 1, 3], vec![4]]);
    }
}
