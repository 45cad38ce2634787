//! Arrow files: those of others are read, damaged ones are refused, and what is written reads back.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use arrow_array::builder::{
    Int32Builder, LargeBinaryBuilder, LargeListBuilder, ListBuilder, StringDictionaryBuilder,
};
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, FixedSizeListArray, Float16Array, Float32Array,
    Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray, StringViewArray, UInt8Array,
};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{DataType, Field as Column, Schema};
use feedline_core::{
    Batch, Blobs, Buffer, DType, Error, Field, Layout, Result, Spec, Store, Tensor,
};
use feedline_ops::Pipeline;
use feedline_ops::plain::{Part, Plain};
use feedline_ops::sink::ArrowWriter;
use feedline_plan::Plan;
use feedline_store::LocalStore;
use half::{bf16, f16};
use std::path::Path;
use std::sync::Arc;

/// All rows of a file or folder.
fn rows(path: &Path) -> Result<Vec<Batch>> {
    rows_of(&format!("arrow path={}", path.display()))
}

fn rows_of(plan: &str) -> Result<Vec<Batch>> {
    let plan: Plan = plan.parse().unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let pipeline = Arc::new(Pipeline::open(&plan, &*store, &Blobs::new())?);
    // No damaged length makes a test endless.
    assert!(pipeline.length().places() < 1 << 20);
    Plain::new(pipeline, store, Part::default()).collect()
}

fn error(path: &Path) -> String {
    rows(path).unwrap_err().to_string()
}

/// A file as others write it.
fn write(path: &Path, batches: &[RecordBatch]) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = FileWriter::try_new(file, &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn spec() -> Spec {
    Spec::new(vec![
        Field::new("id", DType::I64, &[]),
        Field::new("flag", DType::Bool, &[]),
        Field::new("half", DType::F16, &[]),
        Field::new("brain", DType::BF16, &[Some(2)]),
        Field::image("image", DType::U8, Layout::Chw, [Some(2), Some(5), Some(3)]),
        Field::new("mask", DType::Bool, &[Some(3), Some(7)]),
        Field::new("tokens", DType::I32, &[None]),
        Field::new("bits", DType::Bool, &[None]),
        Field::image("photo", DType::U8, Layout::Hwc, [None, None, Some(3)]),
        Field::new("none", DType::F64, &[Some(0), Some(3)]),
        Field::new("text", DType::Text, &[]),
        Field::new("data", DType::Bytes, &[]),
    ])
}

fn bools(shape: &[usize], bit: impl Fn(usize) -> bool) -> Tensor {
    let bytes: Vec<u8> = (0..shape.iter().product()).map(|at| u8::from(bit(at))).collect();
    Tensor::new(DType::Bool, shape, Buffer::from(&bytes[..])).unwrap()
}

fn row(n: usize) -> Vec<Tensor> {
    let numbers = |count: usize| (0..count).map(|at| (n * 31 + at * 7) as u8).collect::<Vec<_>>();
    let brain = [bf16::from_f32(n as f32), bf16::from_f32(-0.5)];
    let tokens: Vec<i32> = (0..n % 5).map(|at| at as i32 - n as i32).collect();
    vec![
        Tensor::scalar(n as i64 - 3),
        bools(&[], |_| n.is_multiple_of(3)),
        Tensor::scalar(f16::from_f32(n as f32 / 3.0)),
        Tensor::from_slice(&[2], &brain),
        Tensor::from_slice(&[3, 2, 5], &numbers(30)),
        bools(&[3, 7], |at| (at * n) % 3 == 1),
        Tensor::from_slice(&[tokens.len()], &tokens),
        bools(&[n % 4], |at| (at + n).is_multiple_of(2)),
        Tensor::from_slice(&[n % 3, n % 2 + 1, 3], &numbers(n % 3 * (n % 2 + 1) * 3)),
        Tensor::new(DType::F64, &[0, 3], Buffer::from(&[][..])).unwrap(),
        Tensor::text(["", "eins", "zwölf"][n % 3]),
        Tensor::bytes(Buffer::from(&numbers(n * 11 % 40)[..])),
    ]
}

fn file(rows: std::ops::Range<usize>, each: usize) -> Vec<u8> {
    let rows: Vec<Vec<Tensor>> = rows.map(row).collect();
    let rows: Vec<&[Tensor]> = rows.iter().map(Vec::as_slice).collect();
    let notes = [("feedline", "a note".to_owned())];
    let mut writer = ArrowWriter::new(Vec::new(), "memory", &spec(), &notes).unwrap();
    rows.chunks(each).for_each(|rows| writer.write(rows).unwrap());
    writer.finish(&[("end", "another".to_owned())]).unwrap()
}

fn fields(batch: &Batch) -> Vec<Tensor> {
    batch.fields.iter().map(|(_, tensor)| tensor.clone()).collect()
}

#[test]
fn what_is_written_reads_back_whatever_the_batches() {
    let folder = tempfile::tempdir().unwrap();
    for each in [1, 3, 40] {
        std::fs::write(folder.path().join("a.arrow"), file(0..17, each)).unwrap();
        std::fs::write(folder.path().join("b.arrow"), file(17..20, each)).unwrap();
        let found = rows(folder.path()).unwrap();
        assert_eq!(found.len(), 20);
        for (n, batch) in found.iter().enumerate() {
            assert_eq!(fields(batch), row(n), "row {n}");
        }
    }
    let plan: Plan = format!("arrow path={}", folder.path().display()).parse().unwrap();
    let (settled, output) = Pipeline::check(&plan, Some(&LocalStore)).unwrap();
    assert_eq!(output, spec());
    // From now on the plan says what is in the files.
    assert_eq!(Pipeline::check(&settled, None).unwrap().1, spec());
    assert_eq!(settled.to_string().parse::<Plan>().unwrap(), settled);
}

#[test]
fn the_same_rows_make_the_same_file_and_buffers_are_aligned() {
    assert_eq!(file(0..9, 4), file(0..9, 4));
    let bytes = file(0..9, 4);
    let reader = FileReader::try_new(std::io::Cursor::new(&bytes), None).unwrap();
    assert_eq!(reader.num_batches(), 3);
    assert_eq!(reader.custom_metadata()["end"], "another");
    assert_eq!(reader.schema().metadata()["feedline"], "a note");
    let tail = bytes.len() - 10;
    let length = i32::from_le_bytes(bytes[tail..tail + 4].try_into().unwrap()) as usize;
    let footer = bytes[tail - length..tail].to_vec();
    let footer = arrow_ipc::root_as_footer(&footer).unwrap();
    for block in footer.recordBatches().unwrap() {
        let start = block.offset() as usize;
        let body = start + block.metaDataLength() as usize;
        assert!(body.is_multiple_of(64), "a body begins at {body}");
        let message = bytes[start + 8..body].to_vec();
        let message = arrow_ipc::root_as_message(&message).unwrap();
        for buffer in message.header_as_record_batch().unwrap().buffers().unwrap() {
            assert_eq!(buffer.offset() % 64, 0);
        }
    }
}

#[test]
fn another_reader_finds_the_same_values() {
    let bytes = file(0..9, 9);
    let mut reader = FileReader::try_new(std::io::Cursor::new(&bytes), None).unwrap();
    let batch = reader.next().unwrap().unwrap();
    assert!(reader.next().is_none());
    let ids = batch.column_by_name("id").unwrap().as_any().downcast_ref::<Int64Array>().unwrap();
    assert_eq!(ids.values()[..], [-3, -2, -1, 0, 1, 2, 3, 4, 5]);
    let texts = batch.column_by_name("text").unwrap().as_any().downcast_ref::<StringArray>();
    assert_eq!(texts.unwrap().value(5), "zwölf");
    let flags = batch.column_by_name("flag").unwrap().as_any().downcast_ref::<BooleanArray>();
    assert!(flags.unwrap().value(3) && !flags.unwrap().value(4));
    let image = batch.column_by_name("image").unwrap();
    let image = image.as_any().downcast_ref::<FixedSizeListArray>().unwrap().value(2);
    let image = image.as_any().downcast_ref::<UInt8Array>().unwrap();
    assert_eq!(&image.values()[..], row(2)[4].data());
    let tokens = batch.column_by_name("tokens").unwrap();
    let tokens = tokens.as_any().downcast_ref::<ListArray>().unwrap();
    assert_eq!(tokens.value(7).len(), 2);
    let image = batch.schema().field_with_name("image").unwrap().clone();
    assert_eq!(image.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    assert_eq!(image.metadata()["ARROW:extension:metadata"], "{\"shape\":[3,2,5]}");
}

#[test]
fn files_of_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    let mut lists = LargeListBuilder::new(Int32Builder::new());
    for list in [&[1, 2, 3][..], &[], &[4], &[5, 6]] {
        lists.append_value(list.iter().map(|number| Some(*number)));
    }
    let mut blobs = LargeBinaryBuilder::new();
    [&b"one"[..], b"", b"three", b"4"].iter().for_each(|blob| blobs.append_value(blob));
    let item = Arc::new(Column::new("item", DataType::Float32, true));
    let flat = Arc::new(Float32Array::from_iter_values((0..24).map(|n| n as f32)));
    let inner = FixedSizeListArray::new(Arc::clone(&item), 3, flat, None);
    let inner_item = Arc::new(Column::new("item", inner.data_type().clone(), true));
    let nested = FixedSizeListArray::new(inner_item, 2, Arc::new(inner), None);
    let all = batch(vec![
        ("half", Arc::new(Float16Array::from_iter_values([1.0, 2.0, 3.0, 4.0].map(f16::from_f32)))),
        ("list", Arc::new(lists.finish())),
        ("blob", Arc::new(blobs.finish())),
        ("text", Arc::new(LargeStringArray::from(vec!["a", "bc", "", "d"]))),
        ("flag", Arc::new(BooleanArray::from(vec![true, false, true, true]))),
        ("nested", Arc::new(nested)),
    ]);
    // Sliced, with an empty batch between.
    write(&path, &[all.slice(0, 2), all.slice(0, 0), all.slice(1, 3)]);
    let found = rows(&path).unwrap();
    assert_eq!(found.len(), 5);
    let last = |name: &str| found[4].field(name).unwrap().clone();
    assert_eq!(last("half"), Tensor::scalar(f16::from_f32(4.0)));
    assert_eq!(last("list"), Tensor::from_slice(&[2], &[5i32, 6]));
    assert_eq!(last("blob"), Tensor::bytes(Buffer::from(&b"4"[..])));
    assert_eq!(last("text"), Tensor::text("d"));
    assert_eq!(last("flag"), bools(&[], |_| true));
    let six: Vec<f32> = (18..24).map(|n| n as f32).collect();
    assert_eq!(last("nested"), Tensor::from_slice(&[2, 3], &six));
    let texts: Vec<_> =
        found.iter().map(|row| row.field("text").unwrap().data().to_vec()).collect();
    assert_eq!(texts, [&b"a"[..], b"bc", b"bc", b"", b"d"]);
}

#[test]
fn what_is_missing_is_a_bad_record_that_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    let mut lists = ListBuilder::new(Int32Builder::new());
    lists.append_value([Some(1), Some(2)]);
    lists.append_value([Some(3)]);
    lists.append_value([Some(4), None, Some(5)]);
    lists.append_value([None; 0]);
    lists.append_value([Some(6)]);
    write(
        &path,
        &[batch(vec![
            ("n", Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4), Some(5)]))),
            ("list", Arc::new(lists.finish())),
        ])],
    );
    let bad = error(&path);
    assert!(bad.contains("a.arrow[1] (index 1") && bad.contains("column n has no value"), "{bad}");
    let plan = format!("arrow path={} | on_error policy=skip", path.display());
    let found = rows_of(&plan).unwrap();
    let numbers: Vec<_> = found.iter().map(|row| row.field("n").unwrap().value::<i64>()).collect();
    assert_eq!(numbers, [Some(1), Some(4), Some(5)]);
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    let mut words = StringDictionaryBuilder::<Int8Type>::new();
    ["x", "y", "x"].iter().for_each(|word| words.append_value(word));
    let refused = |array: ArrayRef, word: &str| {
        write(&path, &[batch(vec![("odd", array)])]);
        let text = error(&path);
        assert!(
            text.contains("a.arrow") && text.contains("\"odd\"") && text.contains(word),
            "{text}"
        );
    };
    refused(Arc::new(words.finish()), "dictionary-encoded");
    refused(Arc::new(Date32Array::from(vec![1])), "Date");
    refused(Arc::new(StringViewArray::from(vec!["a"])), "Utf8View");
    let mut stream = Vec::new();
    let all = batch(vec![("n", Arc::new(Int64Array::from(vec![1])))]);
    let mut writer = StreamWriter::try_new(&mut stream, &all.schema()).unwrap();
    writer.write(&all).unwrap();
    writer.finish().unwrap();
    std::fs::write(&path, &stream).unwrap();
    assert!(error(&path).contains("stream format"), "{}", error(&path));
    let twice = Schema::new(vec![
        Column::new("n", DataType::Int64, false),
        Column::new("n", DataType::Int64, false),
    ]);
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let twice = RecordBatch::try_new(twice.into(), vec![Arc::clone(&numbers), numbers]).unwrap();
    write(&path, &[twice]);
    assert!(error(&path).contains("two columns called n"), "{}", error(&path));
    let text = std::fs::write(&path, b"").map(|()| error(&path)).unwrap();
    assert!(text.contains("too short"), "{text}");
}

#[test]
fn files_that_differ_or_change_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let number = |value: i64| batch(vec![("n", Arc::new(Int64Array::from(vec![value])))]);
    write(&folder.path().join("a.arrow"), &[number(1)]);
    write(
        &folder.path().join("b.arrow"),
        &[batch(vec![("n", Arc::new(UInt8Array::from(vec![1])))])],
    );
    let text = error(folder.path());
    assert!(
        text.contains("b.arrow") && text.contains("n uint8[]") && text.contains("n int64[]"),
        "{text}"
    );
    // A file that shrinks after it was opened is a bad record, and nothing worse.
    let path = folder.path().join("c.arrow");
    std::fs::write(&path, file(0..8, 8)).unwrap();
    let plan: Plan = format!("arrow path={}", path.display()).parse().unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let pipeline = Arc::new(Pipeline::open(&plan, &*store, &Blobs::new()).unwrap());
    let mut run = Plain::new(pipeline, store, Part::default());
    assert_eq!(fields(&run.next().unwrap().unwrap()), row(0));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = run.next().unwrap().unwrap_err();
    assert!(error.is_record() && error.to_string().contains("changed"), "{error}");
}

#[test]
fn a_file_of_any_shorter_length_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    let whole = file(0..4, 2);
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        match rows(&path) {
            Err(Error::Source(text)) => assert!(text.contains("a.arrow"), "{length}: {text}"),
            other => panic!("{length} bytes: {other:?}"),
        }
    }
}

/// Opens and reads damaged bytes: whatever comes out, it is rows or an error.
fn survives(path: &Path, bytes: &[u8]) -> bool {
    std::fs::write(path, bytes).unwrap();
    match rows(path) {
        Ok(_) => true,
        Err(Error::Internal(text)) => panic!("{text}"),
        Err(_) => false,
    }
}

#[test]
fn damaged_bytes_give_rows_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    let whole = file(0..4, 2);
    let mut lists = ListBuilder::new(Int32Builder::new());
    lists.append_value([Some(1), None]);
    lists.append_value([Some(3)]);
    let other = folder.path().join("other");
    write(&other, &[batch(vec![("l", Arc::new(lists.finish()))])]);
    let small = std::fs::read(&other).unwrap();
    let mut state = 0x1234_5678_9ABC_DEF0u64;
    let mut draw = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let odd = [0, 1, 0x7F, 0x80, 0xFF];
    let (mut good, mut bad) = (0, 0);
    for round in 0..6000 {
        let mut bytes = if round % 3 == 0 { small.clone() } else { whole.clone() };
        // Most of a file is values, which may be anything: aim at what describes them.
        let from = if round % 2 == 0 { bytes.len() - bytes.len() / 3 } else { 0 };
        for _ in 0..1 + draw(4) {
            let at = from + draw(bytes.len() - from);
            bytes[at] = match draw(3) {
                0 => bytes[at] ^ (1 << draw(8)),
                1 => odd[draw(odd.len())],
                _ => draw(256) as u8,
            };
        }
        if survives(&path, &bytes) { good += 1 } else { bad += 1 }
    }
    assert!(good > 500 && bad > 500, "{good} were read, {bad} refused: nothing was tested");
}

#[test]
fn every_word_of_the_metadata_may_be_huge_negative_or_odd() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    let mut lists = ListBuilder::new(Int32Builder::new());
    lists.append_value([Some(1), Some(2)]);
    write(&path, &[batch(vec![("l", Arc::new(lists.finish()))])]);
    let whole = std::fs::read(&path).unwrap();
    let words = [i64::MAX, i64::MIN, -1, 1 << 40, 7, i64::from(i32::MAX), i64::from(i32::MIN)];
    for at in (0..whole.len() - 8).step_by(4) {
        for word in words {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            survives(&path, &bytes);
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&(word as i32).to_le_bytes());
            survives(&path, &bytes);
        }
    }
}
