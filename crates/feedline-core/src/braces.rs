//! Names with braces, as shells know them: `x-{000..127}.bin` and `{train,test}/a`.

use crate::{Error, Result, redacted};

/// A name stands for no more than so many.
const MOST: u64 = 1_000_000;

/// What one pair of braces stands for.
struct Choice<'a> {
    before: &'a str,
    items: Items<'a>,
    after: &'a str,
}

enum Items<'a> {
    Words(Vec<&'a str>),
    Numbers { first: u64, last: u64, width: usize },
}

impl Items<'_> {
    fn count(&self) -> u64 {
        match self {
            Self::Words(words) => words.len() as u64,
            Self::Numbers { first, last, .. } => (last - first).saturating_add(1),
        }
    }

    fn at(&self, number: u64) -> String {
        match self {
            Self::Words(words) => words.get(number as usize).map_or("", |word| word).to_owned(),
            Self::Numbers { first, width, .. } => format!("{:0width$}", first + number),
        }
    }
}

/// All names that a name with braces stands for, in the order in which a shell writes them: `{8..11}`
/// is 8, 9, 10, 11, `{008..011}` keeps its zeros, `{a,b}` is a and b. Braces that are neither are part
/// of the name.
///
/// # Errors
///
/// If those are too many, or numbers go backwards.
pub fn expand(name: &str) -> Result<Vec<String>> {
    let (choices, rest) = choices(name)?;
    let mut names = vec![String::new()];
    for Choice { before, items, .. } in choices {
        let mut longer = Vec::with_capacity(names.len() * items.count() as usize);
        for begin in &names {
            longer.extend((0..items.count()).map(|at| format!("{begin}{before}{}", items.at(at))));
        }
        names = longer;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// A few of the names that a name with braces stands for, in which every word and the ends of all
/// numbers occur: enough to see what may be wrong with the others.
///
/// # Errors
///
/// As [`expand`].
pub(crate) fn some_of(name: &str) -> Result<Vec<String>> {
    let (choices, rest) = choices(name)?;
    let with = |which: usize, chosen: u64| {
        let part = |(number, choice): (usize, &Choice<'_>)| {
            let at = if number == which { chosen } else { 0 };
            format!("{}{}", choice.before, choice.items.at(at))
        };
        choices.iter().enumerate().map(part).collect::<String>() + rest
    };
    let mut names = vec![with(usize::MAX, 0)];
    for (which, choice) in choices.iter().enumerate() {
        match &choice.items {
            Items::Words(words) => names.extend((1..words.len()).map(|at| with(which, at as u64))),
            numbers @ Items::Numbers { .. } => names.push(with(which, numbers.count() - 1)),
        }
    }
    Ok(names)
}

/// All pairs of braces that stand for something, and what comes behind them.
fn choices(name: &str) -> Result<(Vec<Choice<'_>>, &str)> {
    let (mut choices, mut rest, mut total) = (Vec::new(), name, 1u64);
    while let Some(choice) = next_choice(rest, name)? {
        rest = choice.after;
        total = total.saturating_mul(choice.items.count());
        choices.push(choice);
    }
    match total > MOST {
        true => Err(Error::pipeline(format!(
            "{} stands for {total} names; {MOST} are the most",
            redacted(name)
        ))),
        false => Ok((choices, rest)),
    }
}

/// The first pair of braces that stands for something.
fn next_choice<'a>(text: &'a str, name: &str) -> Result<Option<Choice<'a>>> {
    let mut from = 0;
    while let Some(open) = text[from..].find('{').map(|at| at + from) {
        let inside = &text[open + 1..];
        // Braces within braces are not taken apart.
        let Some(close) = inside.find(['{', '}']).filter(|at| inside[*at..].starts_with('}'))
        else {
            from = open + 1;
            continue;
        };
        let (before, after) = (&text[..open], &inside[close + 1..]);
        let inside = &inside[..close];
        if let Some((first, last)) = inside.split_once("..")
            && let (Some(low), Some(high)) = (number(first), number(last))
        {
            if low > high {
                return Err(Error::pipeline(format!(
                    "{}: {{{inside}}} goes backwards; write the smaller number first",
                    redacted(name)
                )));
            }
            let padded = [first, last].iter().any(|text| text.len() > 1 && text.starts_with('0'));
            let width = if padded { first.len().max(last.len()) } else { 0 };
            let items = Items::Numbers { first: low, last: high, width };
            return Ok(Some(Choice { before, items, after }));
        }
        if inside.contains(',') {
            let items = Items::Words(inside.split(',').collect());
            return Ok(Some(Choice { before, items, after }));
        }
        from = open + 1;
    }
    Ok(None)
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_written_out_as_a_shell_does() {
        for (name, wanted) in [
            ("a", vec!["a"]),
            ("x-{8..11}", vec!["x-8", "x-9", "x-10", "x-11"]),
            ("{008..010}.bin", vec!["008.bin", "009.bin", "010.bin"]),
            ("{a,b}/{0..1}", vec!["a/0", "a/1", "b/0", "b/1"]),
            ("{a,}x", vec!["ax", "x"]),
            ("{}{a}{a..b}{1..}}", vec!["{}{a}{a..b}{1..}}"]),
            ("{{a,b}", vec!["{a", "{b"]),
            ("ä{é,ü}", vec!["äé", "äü"]),
        ] {
            assert_eq!(expand(name).unwrap(), wanted, "{name}");
        }
    }

    #[test]
    fn some_hold_every_word_and_both_ends() {
        assert_eq!(some_of("a").unwrap(), ["a"]);
        assert_eq!(some_of("{a,b}{1..9}x").unwrap(), ["a1x", "b1x", "a9x"]);
        assert_eq!(some_of("{0..999999}").unwrap().len(), 2);
        assert!(some_of("{0..1000000}").is_err());
    }

    #[test]
    fn absurd_braces_are_refused_before_memory_is_taken() {
        for name in ["{0..18446744073709551615}", "{0..9999}{0..9999}", "{1..9999999999}"] {
            assert!(expand(name).unwrap_err().to_string().contains("the most"), "{name}");
        }
        assert!(expand("{9..1}").unwrap_err().to_string().contains("backwards"));
        let many = "{0..9}".repeat(40);
        assert!(expand(&many).is_err());
    }
}
