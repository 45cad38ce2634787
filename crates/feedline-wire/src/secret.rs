//! Values that are never shown.

use std::fmt;

/// A value that logs, errors and panics do not show.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides a value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for those who have to use it.
    #[must_use]
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("(hidden)")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let secret = Secret::new("canary");
        assert!(!format!("{secret} {secret:?} {:#?}", Some(&secret)).contains("canary"));
        assert_eq!(*secret.expose(), "canary");
    }
}
