//! Tensors and batches as short lines of text.

use feedline_core::{Batch, DType, Tensor};
use feedline_plan::Fingerprint;
use half::{bf16, f16};

/// Tensors of up to this many elements are written out.
const SMALL: usize = 16;

/// A delivered batch or sample on one line: the value alone if there is one field, otherwise
/// `name=value` for each.
#[must_use]
pub fn show_batch(batch: &Batch) -> String {
    if let [(_, only)] = &batch.fields[..] {
        return show_tensor(only);
    }
    let fields: Vec<String> = batch
        .fields
        .iter()
        .map(|(name, tensor)| format!("{name}={}", show_tensor(tensor)))
        .collect();
    fields.join(" ")
}

/// Each row of a batch on a line, behind its index if that is known; the whole of a sample that is in
/// no batch.
#[must_use]
pub fn show_rows(batch: &Batch, stacked: bool) -> Vec<String> {
    let index = |row: usize| batch.indices.as_ref().and_then(|indices| indices.get(row));
    if !stacked {
        return vec![format!("{:?} {}", index(0), show_batch(batch))];
    }
    // How far a row is filled up depends on the others of its batch.
    let own = |name: &str, tensor: &Tensor, row: usize| {
        let lengths = batch.field(&format!("{name}_length")).and_then(Tensor::as_slice::<i64>);
        match lengths.and_then(|lengths| lengths.get(row)) {
            Some(length) => tensor.row(row).first(*length as usize),
            None => tensor.row(row),
        }
    };
    let row = |row: usize| {
        let fields: Vec<String> = batch
            .fields
            .iter()
            .map(|(name, tensor)| match tensor.item(row) {
                Some(item) => format!("{name}={}", show_item(tensor.dtype(), item)),
                None => format!("{name}={}", show_tensor(&own(name.as_str(), tensor, row))),
            })
            .collect();
        format!("{:?} {}", index(row), fields.join(" "))
    };
    (0..batch.rows).map(row).collect()
}

/// A tensor in few words: `int64`, truth values and text as they are, other dtypes by their name;
/// more than 16 numbers as `dtype[shape] min mean max #hash`.
#[must_use]
pub fn show_tensor(tensor: &Tensor) -> String {
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    if dtype.size().is_none() {
        let items: Vec<String> = match shape {
            [] => vec![show_item(dtype, tensor.item(0).unwrap_or_default())],
            _ => (0..tensor.elements())
                .map(|at| show_item(dtype, tensor.item(at).unwrap_or_default()))
                .collect(),
        };
        return if shape.is_empty() { items.concat() } else { format!("[{}]", items.join(" ")) };
    }
    let numbers = numbers(tensor);
    let name =
        if matches!(dtype, DType::I64 | DType::Bool) { String::new() } else { dtype.to_string() };
    if numbers.len() > SMALL {
        let sides: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let values = numbers.iter().map(|number| number.1);
        let (low, high) = values
            .clone()
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let mean = values.sum::<f64>() / numbers.len() as f64;
        let hash = Fingerprint::of(tensor.data()).to_string();
        let sides = sides.join("×");
        return format!("{dtype}[{sides}] {low} {mean:.3} {high} #{}", &hash[..8]);
    }
    let gap = if !name.is_empty() && shape.is_empty() { " " } else { "" };
    let mut at = 0;
    format!("{name}{gap}{}", nested(shape, &numbers, &mut at))
}

fn nested(shape: &[usize], numbers: &[(String, f64)], at: &mut usize) -> String {
    let Some((side, inner)) = shape.split_first() else {
        *at += 1;
        return numbers[*at - 1].0.clone();
    };
    let parts: Vec<String> = (0..*side).map(|_| nested(inner, numbers, at)).collect();
    format!("[{}]", parts.join(" "))
}

fn show_item(dtype: DType, item: &[u8]) -> String {
    if dtype == DType::Text {
        return format!("{:?}", String::from_utf8_lossy(item));
    }
    format!("bytes({} #{})", item.len(), &Fingerprint::of(item).to_string()[..8])
}

/// The numbers of a tensor, written out and as floats.
fn numbers(tensor: &Tensor) -> Vec<(String, f64)> {
    macro_rules! read {
        ($number:ty, $wide:expr) => {
            tensor
                .data()
                .chunks_exact(std::mem::size_of::<$number>())
                .map(|chunk| {
                    let chunk = chunk.try_into().expect("chunks have the number's size");
                    let number = <$number>::from_ne_bytes(chunk);
                    let wide: fn($number) -> f64 = $wide;
                    (number.to_string(), wide(number))
                })
                .collect()
        };
    }
    match tensor.dtype() {
        DType::Bool => {
            tensor.data().iter().map(|byte| ((*byte != 0).to_string(), f64::from(*byte))).collect()
        }
        DType::U8 => read!(u8, f64::from),
        DType::I8 => read!(i8, f64::from),
        DType::U16 => read!(u16, f64::from),
        DType::I16 => read!(i16, f64::from),
        DType::U32 => read!(u32, f64::from),
        DType::I32 => read!(i32, f64::from),
        DType::U64 => read!(u64, |number| number as f64),
        DType::I64 => read!(i64, |number| number as f64),
        DType::F16 => read!(f16, f64::from),
        DType::BF16 => read!(bf16, f64::from),
        DType::F32 => read!(f32, f64::from),
        DType::F64 => read!(f64, |number| number),
        DType::Bytes | DType::Text => Vec::new(),
    }
}
