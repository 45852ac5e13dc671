//! What many objects say in the same words is kept once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Few enough to be looked through whenever so many are new.
const FEW: usize = 1024;

/// Values by the text that they were read from, as long as somebody has them.
#[derive(Debug)]
pub(super) struct Shared<T>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T> {
    by_text: HashMap<Box<str>, Weak<T>>,
    /// How many there may be before those that nobody has any more are left out.
    room: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            by_text: HashMap::new(),
            room: FEW,
        }))
    }
}

impl<T> Shared<T> {
    /// The value of a text, read where nobody has it.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn of<E>(
        &self,
        text: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.by_text.get(text).and_then(Weak::upgrade) {
            return Ok(value);
        }
        let value = Arc::new(read(text)?);
        if known.by_text.len() >= known.room {
            known.by_text.retain(|_, value| value.strong_count() > 0);
            known.room = FEW.max(known.by_text.len() * 2);
        }
        known.by_text.insert(text.into(), Arc::downgrade(&value));
        Ok(value)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_one_value_while_somebody_has_it() {
        let shared = Shared::<u32>::default();
        let of = |text: &str| shared.of(text, str::parse);
        let one = of("7").unwrap();
        assert!(Arc::ptr_eq(&one, &of("7").unwrap()));
        assert_eq!((*of("8").unwrap(), of("x").is_err()), (8, true));
        drop(one);
        assert_eq!(*of("7").unwrap(), 7);
    }

    #[test]
    fn what_nobody_has_any_more_is_left_out() {
        let shared = Shared::<usize>::default();
        let of = |n: usize| shared.of(&n.to_string(), str::parse).unwrap();
        let kept: Vec<_> = (0..FEW / 2).map(of).collect();
        for n in FEW..FEW * 20 {
            of(n);
        }
        let known = shared.0.lock().unwrap();
        assert!(known.by_text.len() <= FEW, "{}", known.by_text.len());
        for n in &kept {
            assert!(known.by_text.contains_key(n.to_string().as_str()));
        }
    }
}
