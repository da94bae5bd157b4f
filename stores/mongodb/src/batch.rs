//! Parts of a batch, by the indices of their items.

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
}
