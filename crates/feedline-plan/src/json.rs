//! The JSON form of a plan.

use crate::text::is_name;
use crate::{Call, MAX_BYTES, Plan, VERSION};
use feedline_core::{Error, Result};
use serde_json::{Map, Value};

impl Plan {
    /// The plan as JSON on one line, keys in byte order, so that equal plans are equal text.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    /// The plan as JSON for people to read and edit.
    #[must_use]
    pub fn to_pretty_json(&self) -> String {
        let steps: Vec<String> =
            self.calls().iter().map(|call| format!("    {}", call_value(call))).collect();
        format!("{{\n  \"feedline\": {VERSION},\n  \"steps\": [\n{}\n  ]\n}}\n", steps.join(",\n"))
    }

    fn to_value(&self) -> Value {
        let steps = self.calls().iter().map(call_value).collect();
        let mut plan = Map::new();
        plan.insert("feedline".into(), VERSION.into());
        plan.insert("steps".into(), Value::Array(steps));
        Value::Object(plan)
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    ///
    /// If it is not JSON, of another version, or not of a plan's form.
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(Error::pipeline(format!("{} bytes of JSON are no plan", text.len())));
        }
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::pipeline(format!("not JSON: {error}")))?;
        let Value::Object(mut plan) = value else {
            return Err(Error::pipeline(
                "a plan in JSON is an object with \"feedline\" and \"steps\"",
            ));
        };
        match plan.remove("feedline") {
            Some(version) if version == VERSION => {}
            Some(version) => {
                return Err(Error::pipeline(format!(
                    "it is of version {version}; this release reads version {VERSION}"
                )));
            }
            None => return Err(Error::pipeline(format!("\"feedline\": {VERSION} is missing"))),
        }
        let Some(Value::Array(steps)) = plan.remove("steps") else {
            return Err(Error::pipeline("\"steps\" must be a list of steps"));
        };
        if let Some(key) = plan.keys().next() {
            return Err(Error::pipeline(format!("a plan has no {key:?}; only feedline and steps")));
        }
        let calls = steps.into_iter().enumerate().map(|(at, step)| read_call(at, step));
        Ok(Self::new(calls.collect::<Result<_>>()?))
    }

    /// Reads either form: JSON if it begins with a brace, text otherwise.
    ///
    /// # Errors
    ///
    /// As [`Plan::from_json`] or the text form's parser.
    pub fn read(text: &str) -> Result<Self> {
        if text.trim_start().starts_with('{') { Self::from_json(text) } else { text.parse() }
    }
}

fn call_value(call: &Call) -> Value {
    let mut step = call.args.clone();
    step.insert("step".into(), call.step.clone().into());
    Value::Object(step)
}

fn read_call(at: usize, step: Value) -> Result<Call> {
    let Value::Object(mut args) = step else {
        return Err(Error::pipeline(format!("step {at} is {step}, not an object with \"step\"")));
    };
    let Some(Value::String(step)) = args.remove("step") else {
        return Err(Error::pipeline(format!("step {at} has no name: give it \"step\": \"…\"")));
    };
    // Other names would not survive the text form.
    if let Some(odd) = [&step].into_iter().chain(args.keys()).find(|name| !is_name(name)) {
        return Err(Error::pipeline(format!(
            "step {at}: {odd:?} is no name; letters, digits and _ are"
        )));
    }
    Ok(Call { step, args })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> String {
        Plan::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn the_form_is_stable_across_releases() {
        let plan: Plan = "range count=3 | batch size=2 drop_last=true".parse().unwrap();
        let json = r#"{"feedline":1,"steps":[{"count":3,"step":"range"},{"drop_last":true,"size":2,"step":"batch"}]}"#;
        assert_eq!(plan.to_json(), json);
        assert_eq!(
            plan.fingerprint().to_string(),
            "98f37cb707be4fc53a8c33af4ef1a82c77c60b271e2d4794a0538a1969557549"
        );
    }

    #[test]
    fn the_readable_form_reads_back() {
        let plan: Plan = "range count=3 | batch size=2".parse().unwrap();
        assert_eq!(Plan::from_json(&plan.to_pretty_json()).unwrap(), plan);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error("{").contains("not JSON"));
        assert!(error("[]").contains("object"));
        assert!(error("{}").contains("\"feedline\": 1"));
        assert!(error(r#"{"feedline":2,"steps":[]}"#).contains("version 2"));
        assert!(error(r#"{"feedline":1}"#).contains("steps"));
        assert!(error(r#"{"feedline":1,"steps":[3]}"#).contains("step 0 is 3"));
        assert!(error(r#"{"feedline":1,"steps":[{"size":3}]}"#).contains("no name"));
        assert!(error(r#"{"feedline":1,"steps":[{"step":"a b"}]}"#).contains("\"a b\" is no name"));
        let odd = r#"{"feedline":1,"steps":[{"step":"range","count=1 | x":3}]}"#;
        assert!(error(odd).contains("is no name; letters, digits and _ are"));
        assert!(error(r#"{"feedline":1,"steps":[],"seed":3}"#).contains("\"seed\""));
        assert!(error(&"[".repeat(100_000)).contains("not JSON"));
    }
}
