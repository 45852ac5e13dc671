//! Dividing things among takers, as evenly as whole things go.

/// The parts of `things` for each of so many takers, in order. Where there are enough, each gets
/// its own, the first ones one more while a remainder lasts; where there are fewer than takers,
/// each thing is shared by a run of takers, the first ones' runs longer.
pub(crate) fn shares<T>(things: &[T], takers: usize) -> impl Iterator<Item = &[T]> {
    let len = things.len();
    (0..takers).map(move |taker| {
        let (start, end) = if len >= takers {
            (start(len, takers, taker), start(len, takers, taker + 1))
        } else {
            let shared = part_of(takers, len, taker);
            (shared, (shared + 1).min(len))
        };
        things.get(start..end).unwrap_or_default()
    })
}

/// Where part `index` begins when `len` things are cut into `parts`, the first parts one longer
/// while the remainder lasts.
pub(crate) fn start(len: usize, parts: usize, index: usize) -> usize {
    let (each, remainder) = (len / parts.max(1), len % parts.max(1));
    index * each + index.min(remainder)
}

/// The part that thing `index` of `len` falls in.
fn part_of(len: usize, parts: usize, index: usize) -> usize {
    (1..parts)
        .take_while(|part| start(len, parts, *part) <= index)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shared(things: usize, takers: usize) -> Vec<Vec<usize>> {
        let things: Vec<usize> = (0..things).collect();
        shares(&things, takers).map(<[usize]>::to_vec).collect()
    }

    #[test]
    fn remainder_first() {
        assert_eq!(shared(4, 1), [[0, 1, 2, 3]]);
        assert_eq!(shared(4, 2), [[0, 1], [2, 3]]);
        assert_eq!(shared(5, 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(shared(5, 3), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(shared(3, 3), [[0], [1], [2]]);
    }

    #[test]
    fn fewer_things_than_takers_are_shared() {
        assert_eq!(shared(1, 2), [[0], [0]]);
        assert_eq!(shared(2, 3), [[0], [0], [1]]);
        assert_eq!(shared(2, 5), [[0], [0], [0], [1], [1]]);
        assert_eq!(shared(3, 4), [[0], [0], [1], [2]]);
        assert_eq!(shared(0, 2), [[0; 0], [0; 0]]);
        assert_eq!(shared(3, 0), [[0; 0]; 0]);
    }

    proptest! {
        #[test]
        fn everything_is_given_and_nobody_is_left_out(things in 0_usize..70, takers in 1_usize..20) {
            let parts = shared(things, takers);
            prop_assert_eq!(parts.len(), takers);
            let mut given: Vec<usize> = parts.concat();
            given.dedup();
            prop_assert_eq!(given, (0..things).collect::<Vec<_>>());
            let sizes = || parts.iter().map(Vec::len);
            prop_assert!(sizes().min() >= Some(usize::from(things > 0)));
            prop_assert!(sizes().max() <= sizes().min().map(|least| least + 1));
        }
    }
}
