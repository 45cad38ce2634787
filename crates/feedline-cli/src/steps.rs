//! `feedline steps`: what a pipeline can be made of.
//!
//! Nothing about a step is written down here. The catalog is asked: a call with an argument that
//! cannot exist is answered with those that do, and a call that lacks one is answered with its name.

use crate::output::{Output, Table};
use anyhow::Result;
use feedline_core::Error;
use feedline_ops::{Builtin, Step};
use feedline_plan::{Call, Catalog};
use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    kind: &'static str,
    required: Vec<String>,
    optional: Vec<String>,
}

/// How steps act, in the order in which data meets them.
const KINDS: [(&str, &str); 7] = [
    ("source", "give samples; a pipeline begins with one"),
    ("order", "choose samples, or say in which order they come"),
    ("sample", "change each sample"),
    ("cache", "keep samples from one epoch to the next"),
    ("batch", "bring samples together"),
    ("policy", "say what happens to bad samples"),
    ("other", "other steps"),
];

pub(crate) fn run(output: &Output) -> Result<()> {
    let steps: Vec<Listed> = Builtin.names().into_iter().map(ask).collect();
    if output.json {
        return output.document(&json!({ "steps": steps }));
    }
    let mut text = String::new();
    for (kind, acts) in KINDS {
        let mut table = Table::new(&["", ""]);
        let mut any = false;
        for step in steps.iter().filter(|step| step.kind == kind) {
            let required = step.required.iter().map(|name| format!("{name}=…"));
            let optional = step.optional.iter().map(|name| format!("[{name}=…]"));
            let arguments: Vec<String> = required.chain(optional).collect();
            table.row(vec![step.name.to_owned(), arguments.join(" ")]);
            any = true;
        }
        if any {
            let heading = format!("{} {}", output.paint.bold(kind), output.paint.dim(acts));
            text += &format!("{heading}\n{}\n", table.render(output.paint));
        }
    }
    text += &output
        .paint
        .dim("Arguments in brackets may be left out. Join steps with | to make a plan.");
    output.text(&(text + "\n"))
}

fn call(name: &str, args: &Map<String, Value>) -> Result<Step, String> {
    match Builtin.step(&Call { step: name.to_owned(), args: args.clone() }, None) {
        Ok((step, _)) => Ok(step),
        Err(Error::Pipeline(message)) => Err(message),
        Err(other) => Err(other.to_string()),
    }
}

fn ask(name: &'static str) -> Listed {
    let mut nonsense = Map::new();
    nonsense.insert("?".into(), Value::Null);
    let answer = call(name, &nonsense).err().unwrap_or_default();
    let all = answer.split_once("it takes ").map_or("", |(_, names)| names);
    let all: Vec<String> =
        all.split(", ").filter(|name| !name.is_empty()).map(Into::into).collect();
    let mut args = Map::new();
    let kind = match complete(name, &mut args) {
        Some(Step::Source(_)) => "source",
        Some(Step::Order(_)) => "order",
        Some(Step::Map(_)) => "sample",
        Some(Step::Batch(_) | Step::Bucket(_)) => "batch",
        Some(Step::Cache(_)) => "cache",
        Some(Step::Policy(_)) => "policy",
        None => "other",
    };
    let (required, optional) = all.into_iter().partition(|argument| args.contains_key(argument));
    Listed { name, kind, required, optional }
}

/// Adds the arguments that a step cannot do without, with any value it takes.
fn complete(name: &str, args: &mut Map<String, Value>) -> Option<Step> {
    let complaint = match call(name, args) {
        Ok(step) => return Some(step),
        Err(complaint) => complaint,
    };
    let missing = missing_argument(&complaint)?.to_owned();
    let three = json!([1, 1, 1]);
    let mut values =
        vec![json!(1), json!("x"), json!([]), json!({}), json!(0.5), json!(true), three];
    let mut at = 0;
    while let Some(value) = values.get(at).cloned() {
        args.insert(missing.clone(), value.clone());
        match call(name, args) {
            Ok(step) => return Some(step),
            Err(complaint) if missing_argument(&complaint).is_some_and(|next| next != missing) => {
                return complete(name, args);
            }
            // A set of words lists them when it gets another.
            Err(complaint) if value == "x" => {
                let words = complaint.split(|c: char| !c.is_alphanumeric() && c != '_');
                // The complaint quotes what it got: that must not be tried for ever.
                let new = words.filter(|word| !word.is_empty() && *word != "x");
                values.extend(new.map(|word| json!(word)));
            }
            Err(_) => {}
        }
        at += 1;
    }
    args.remove(&missing);
    None
}

fn missing_argument(complaint: &str) -> Option<&str> {
    complaint.strip_suffix(" is missing")?.split_once(": argument ").map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_say_what_they_take() {
        let batch = ask("batch");
        assert_eq!((batch.kind, batch.required), ("batch", vec!["size".to_owned()]));
        assert_eq!(batch.optional, ["drop_last", "pad", "pad_ragged", "value"]);
        assert_eq!((ask("range").kind, ask("shuffle").kind), ("source", "order"));
        assert_eq!((ask("layout").kind, ask("layout").required), ("sample", vec!["to".to_owned()]));
        assert_eq!(ask("on_error").kind, "policy");
    }
}
