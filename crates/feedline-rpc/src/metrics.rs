//! Numbers as Prometheus reads them: families of them, one number for each of some things.

use std::fmt::Write;

/// Writes one number for each of some things.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    /// Begins a family of numbers that go up and down.
    pub fn new(text: &'a mut String, name: &'static str, about: &str) -> Self {
        Self::of("gauge", text, name, about)
    }

    /// Begins a family of numbers that only go up.
    pub fn counter(text: &'a mut String, name: &'static str, about: &str) -> Self {
        Self::of("counter", text, name, about)
    }

    fn of(kind: &str, text: &'a mut String, name: &'static str, about: &str) -> Self {
        // Writing to a text does not fail.
        let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
        Self { text, name }
    }

    /// Writes a family of one number.
    pub fn one(text: &'a mut String, name: &'static str, about: &str, value: impl Into<f64>) {
        Self::new(text, name, about).add(&[], value.into());
    }

    /// Adds the number of a thing that these labels name.
    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }
}

/// A label's value: names come from others.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_be_broken_out_of() {
        let mut text = String::new();
        Family::counter(&mut text, "things", "All.").add(&[("name", "a\"} 1\nb \\")], 2.0);
        assert_eq!(
            text,
            "# HELP things All.\n# TYPE things counter\nthings{name=\"a\\\"} 1\\nb \\\\\"} 2\n"
        );
    }
}
