//! A request of many items that goes different ways, and comes back in its own order.

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
}
