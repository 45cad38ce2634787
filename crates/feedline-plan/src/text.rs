//! The one-line text form of a plan, for people and tests.
//!
//! ```text
//!  plan  = call { "|" call }
//!  call  = name { name "=" value }
//!  value = JSON | bare word            a bare word that happens to be JSON is JSON
//! ```

use crate::{Call, MAX_BYTES, Plan};
use feedline_core::{Error, Result};
use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, call) in self.calls().iter().enumerate() {
            if at > 0 {
                f.write_str(" | ")?;
            }
            call.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.step)?;
        for (name, value) in &self.args {
            match value {
                Value::String(text) if is_bare(text) => write!(f, " {name}={text}")?,
                value => write!(f, " {name}={value}")?,
            }
        }
        Ok(())
    }
}

/// What JSON calls the name of a step, so that no argument can be called so.
const STEP: &str = "step";

/// Whether a text can stand without quotes and still read back as text.
fn is_bare(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['"', '[', '{'])
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '|')
        && serde_json::from_str::<Value>(text).is_err()
}

/// Whether a step or an argument can be called so.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl FromStr for Plan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(Error::pipeline(format!("{} bytes of text are no plan", text.len())));
        }
        let mut rest = text.trim();
        let mut calls = Vec::new();
        while !rest.is_empty() || !calls.is_empty() {
            let (call, after) = read_call(rest)?;
            calls.push(call);
            match after.strip_prefix('|') {
                Some(next) => rest = next.trim_start(),
                None => break,
            }
        }
        Ok(Self::new(calls))
    }
}

/// Reads one call; returns what is left, which is empty or begins with a bar.
fn read_call(text: &str) -> Result<(Call, &str)> {
    let end = text.find(|c: char| c.is_whitespace() || c == '|').unwrap_or(text.len());
    let step = &text[..end];
    if !is_name(step) {
        let found = if step.is_empty() { "nothing" } else { step };
        return Err(Error::pipeline(format!("a step's name was expected, not {found:?}")));
    }
    let mut args = Map::new();
    let mut rest = text[end..].trim_start();
    while !rest.is_empty() && !rest.starts_with('|') {
        let (name, after) = rest.split_once('=').unwrap_or((rest, ""));
        if !is_name(name) || after.is_empty() && !rest.contains('=') {
            let word = rest.split(|c: char| c.is_whitespace() || c == '|').next().unwrap_or(rest);
            return Err(Error::pipeline(format!(
                "{step}: arguments are written name=value, not {word:?}"
            )));
        }
        if name == STEP {
            return Err(Error::pipeline(format!("{step}: no argument is called {STEP}")));
        }
        let (value, after) = read_value(after)
            .map_err(|reason| Error::pipeline(format!("{step}: argument {name}: {reason}")))?;
        if args.insert(name.to_owned(), value).is_some() {
            return Err(Error::pipeline(format!("{step}: argument {name} is given twice")));
        }
        rest = after.trim_start();
    }
    Ok((Call { step: step.to_owned(), args }, rest))
}

fn read_value(text: &str) -> Result<(Value, &str), String> {
    if text.starts_with(['"', '[', '{']) {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        return match values.next() {
            Some(Ok(value)) => Ok((value, &text[values.byte_offset()..])),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("a value is missing".into()),
        };
    }
    let end = text.find(|c: char| c.is_whitespace() || c == '|').unwrap_or(text.len());
    let word = &text[..end];
    if word.is_empty() {
        return Err("a value is missing; an empty text is written \"\"".into());
    }
    let value = serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned()));
    Ok((value, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Plan {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<Plan>().unwrap_err().to_string()
    }

    #[test]
    fn bare_words_are_text_unless_they_are_json() {
        let plan = parse("files list=a.csv size=3 p=0.5 pad=true name=\"3\" mean=[0.5, 1]|x");
        let args = &plan.calls()[0].args;
        assert_eq!(args["list"], "a.csv");
        assert_eq!(args["size"], 3);
        assert_eq!(args["p"], 0.5);
        assert_eq!(args["pad"], true);
        assert_eq!(args["name"], "3");
        assert_eq!(args["mean"], serde_json::json!([0.5, 1]));
        assert_eq!(plan.calls()[1].step, "x");
    }

    #[test]
    fn odd_names_are_quoted() {
        let text = r#"images path="my photos | 2024/" | batch size=4"#;
        assert_eq!(parse(text).to_string(), text);
        assert_eq!(parse("images path=a=b").to_string(), "images path=a=b");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error("range |").contains("name was expected"));
        assert!(error("| range").contains("name was expected"));
        assert!(error("range 10").contains("name=value"));
        assert!(error("range count=1 count=2").contains("twice"));
        assert!(error("range count= | x").contains("missing"));
        assert!(error("range count=[1,").contains("argument count"));
        assert!(error("range count=1 step=2").contains("no argument is called step"));
        assert_eq!(parse("  "), Plan::default());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z0-9./|= \"-]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z \"|]{0,5}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_plan_survives_both_forms(
            calls in prop::collection::vec(
                ("[a-z_][a-z0-9_]{0,8}", prop::collection::btree_map("[a-z_]{1,6}", value(), 0..4)),
                1..5,
            ),
        ) {
            let calls = calls.into_iter().map(|(step, args)| {
                let args = args.into_iter().filter(|(name, _)| name != "step").collect();
                Call { step, args }
            });
            let plan = Plan::new(calls.collect());
            prop_assert_eq!(&parse(&plan.to_string()), &plan);
            prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), &plan);
            prop_assert_eq!(parse(&plan.to_string()).fingerprint(), plan.fingerprint());
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = text.parse::<Plan>();
            let _ = Plan::from_json(&text);
        }
    }
}
