//! What people read: tables, numbers, colours; or one JSON document.

use anyhow::Result;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Where a command's results go, and in which form.
pub(crate) struct Output {
    /// Whether one JSON document is wanted instead of text.
    pub(crate) json: bool,
    /// Colours, if a person is looking.
    pub(crate) paint: Paint,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { json, paint: Paint(wanted && io::stdout().is_terminal()) }
    }

    /// Prints text for people, at once.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// Prints the one JSON document.
    pub(crate) fn document(&self, value: &impl Serialize) -> Result<()> {
        self.text(&(serde_json::to_string_pretty(value)? + "\n"))
    }
}

/// Prints a line to stderr. If that is closed, there is nobody left to tell.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Puts text in colour, or leaves it as it is.
#[derive(Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    fn put(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.put("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.put("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.put("32", text)
    }

    pub(crate) fn poor(self, text: &str) -> String {
        self.put("33", text)
    }

    pub(crate) fn accent(self, text: &str) -> String {
        self.put("36", text)
    }
}

/// Rows under headings; columns are as wide as they need to be.
pub(crate) struct Table {
    headings: Vec<String>,
    /// Whether a column holds numbers, which end where the heading ends.
    numbers: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; those that begin with `>` are above numbers.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let numbers = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let headings = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned());
        Self { headings: headings.collect(), numbers, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as lines, indented by two.
    pub(crate) fn render(&self, paint: Paint) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain(self.headings.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.headings.len()).map(|column| width(column).unwrap_or(0)).collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths).zip(&self.numbers);
            let cells = cells.map(|((cell, width), number)| {
                if *number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
        };
        let mut text = String::new();
        if self.headings.iter().any(|heading| !heading.is_empty()) {
            text += &format!("{}\n", paint.dim(&line(&self.headings)));
        }
        for row in &self.rows {
            text += &format!("{}\n", line(row));
        }
        text
    }
}

/// A whole number with its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number to about three digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return format!("{value}");
    }
    match size {
        _ if size >= 1e15 => format!("{value:.3e}"),
        _ if size >= 1000.0 => {
            format!("{}{}", if value < 0.0 { "-" } else { "" }, count(size.round() as u64))
        }
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// Bytes in the unit that suits them.
pub(crate) fn bytes(value: f64) -> String {
    for (unit, name) in [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")] {
        if value >= unit {
            return format!("{:.1} {name}", value / unit);
        }
    }
    format!("{value:.0} B")
}

/// Seconds in the unit that suits them.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0} s"),
        _ if value >= 1.0 => format!("{value:.2} s"),
        _ if value >= 0.001 => format!("{:.1} ms", value * 1e3),
        _ => format!("{:.0} µs", value * 1e6),
    }
}

/// A share as percent. Only nothing reads as 0 %, and only all as 100 %.
pub(crate) fn share(value: f64) -> String {
    match value * 100.0 {
        percent if percent > 0.0 && percent < 0.1 => "<0.1 %".to_owned(),
        percent if percent > 99.9 && percent < 100.0 => ">99.9 %".to_owned(),
        percent if percent > 0.0 && percent < 0.95 => format!("{percent:.1} %"),
        percent if percent > 99.05 && percent < 100.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// At most `most` characters of a text, in one line.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let plain = text.chars().map(|c| if c.is_control() { '·' } else { c });
    if text.chars().count() <= most {
        return plain.collect();
    }
    plain.take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_honest() {
        assert_eq!(
            [count(0), count(999), count(1000), count(12_345_678)],
            ["0", "999", "1,000", "12,345,678"]
        );
        assert_eq!([number(1234.4), number(-2.117_9), number(0.0)], ["1,234", "-2.12", "0.00"]);
        assert_eq!([bytes(999.0), bytes(1e9), bytes(97_531.0)], ["999 B", "1.0 GB", "97.5 kB"]);
        assert_eq!([seconds(1.5), seconds(0.0123), seconds(5e-5)], ["1.50 s", "12.3 ms", "50 µs"]);
        assert_eq!(
            [
                share(0.0),
                share(0.004),
                share(0.5),
                share(0.996),
                share(1e-9),
                share(0.9999),
                share(1.0)
            ],
            ["0 %", "0.4 %", "50 %", "99.6 %", "<0.1 %", ">99.9 %", "100 %"]
        );
    }

    #[test]
    fn a_long_text_is_cut_and_kept_on_one_line() {
        assert_eq!(shorten("häuser am see", 7), "häuser…");
        assert_eq!(shorten("a\nb", 7), "a·b");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["step", ">µs"]);
        table.row(vec!["decode".into(), "1,234".into()]);
        table.row(vec!["é".into(), "7".into()]);
        assert_eq!(
            table.render(Paint(false)),
            "  step       µs\n  decode  1,234\n  é           7\n"
        );
    }
}
