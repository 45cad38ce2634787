//! Whatever happens to the files: what is read is a beginning of the history, or it is refused.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod common;

use common::{files, folder, open, open_with, record, records, small};
use feedline_journal::{Coins, Error, Journal, Options, SimulatedDisk, repair_on};
use std::sync::Arc;

/// One long segment of `commits` commits of `size` records each, left as a killed process leaves it.
fn one_segment(commits: u64, size: u64) -> (SimulatedDisk, Vec<Vec<u8>>) {
    let disk = SimulatedDisk::new();
    let (journal, _) = open_with(&disk, Options { segment_bytes: 1 << 30, ..small() }).unwrap();
    let all: Vec<Vec<u8>> = (0..commits * size).map(record).collect();
    for commit in all.chunks(size as usize) {
        append(&journal, commit);
        journal.sync().unwrap();
    }
    (disk.after_kill(), all)
}

fn append(journal: &Journal, records: &[Vec<u8>]) {
    for record in records {
        journal.append(record).unwrap();
    }
}

/// Several segments, a snapshot in the middle, closed in between.
fn several_segments() -> (SimulatedDisk, Vec<Vec<u8>>) {
    let disk = SimulatedDisk::new();
    let all: Vec<Vec<u8>> = (0..300).map(record).collect();
    for (life, part) in all.chunks(100).enumerate() {
        let (journal, _) = open(&disk).unwrap();
        for (index, record) in part.iter().enumerate() {
            journal.append(record).unwrap();
            if index % 5 == 4 {
                journal.sync().unwrap();
            }
        }
        if life == 0 {
            journal.snapshot(journal.next(), b"a hundred").unwrap();
        }
    }
    (disk.after_kill(), all)
}

/// A copy of a disk that can be changed on its own.
fn copy(disk: &SimulatedDisk) -> SimulatedDisk {
    disk.after_kill()
}

#[test]
fn cut_at_each_of_its_last_4096_bytes_a_journal_opens_with_a_beginning_of_the_history() {
    let (disk, all) = one_segment(60, 4);
    let path = &files(&disk, ".log")[0];
    let bytes = disk.bytes(path).unwrap();
    let (mut opened, mut counts) = (0, std::collections::BTreeSet::new());
    for cut in 1..=4_096 {
        let disk = copy(&disk);
        disk.put(path, bytes[..bytes.len() - cut].to_vec());
        let (journal, history) = open(&disk).unwrap();
        let found = records(&history);
        assert_eq!(found[..], all[..found.len()]);
        // What is appended then lies where it belongs.
        assert_eq!(journal.next().0, found.len() as u64);
        journal.append(b"more").unwrap();
        drop(journal);
        let (_, history) = open(&disk).unwrap();
        assert_eq!(records(&history).last().unwrap(), b"more");
        assert_eq!(records(&history).len(), found.len() + 1);
        opened += 1;
        counts.insert(found.len());
    }
    assert_eq!(opened, 4_096);
    assert!(counts.len() > 80, "the cuts go through many records, not {}", counts.len());
}

#[test]
fn what_was_torn_is_reported() {
    let (disk, _) = one_segment(3, 2);
    let path = &files(&disk, ".log")[0];
    let bytes = disk.bytes(path).unwrap();
    disk.put(path, bytes[..bytes.len() - 1].to_vec());
    let (_, history) = open(&disk).unwrap();
    let torn = history.torn.unwrap();
    assert_eq!(&torn.file, path);
    assert_eq!(torn.bytes, 15 + record(5).len() as u64);
    assert_eq!(torn.offset + torn.bytes, bytes.len() as u64 - 1);
    assert_eq!(disk.bytes(path).unwrap().len() as u64, torn.offset);
}

/// Changes some bytes in one of five ways.
fn damage(bytes: &mut Vec<u8>, coins: &mut Coins) {
    let begin = coins.below(bytes.len() as u64) as usize;
    let most = [4, 40, 400, 100_000][coins.below(4) as usize];
    let end = (begin + 1 + coins.below(most) as usize).min(bytes.len());
    match coins.below(5) {
        0 => bytes[begin] ^= 1 << coins.below(8),
        1 => bytes[begin..end].fill(0),
        2 => {
            let junk: Vec<u8> = (begin..end).map(|_| coins.below(256) as u8).collect();
            bytes.splice(begin..begin, junk);
        }
        3 => drop(bytes.drain(begin..end)),
        _ => {
            let again = bytes[begin..end].to_vec();
            let at = coins.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(at..at, again);
        }
    }
}

#[test]
fn after_ten_thousand_damages_there_is_a_beginning_or_a_refusal_and_a_repair_helps() {
    let journals = [one_segment(40, 3), several_segments()];
    let (mut whole, mut part, mut refused) = (0, 0, 0);
    for seed in 0..10_000 {
        let mut coins = Coins::new(seed);
        let (disk, all) = &journals[seed as usize % 2];
        let disk = copy(disk);
        let targets = [files(&disk, ".log"), files(&disk, ".snap")].concat();
        let path = &targets[coins.below(targets.len() as u64) as usize];
        let mut bytes = disk.bytes(path).unwrap();
        for _ in 0..=coins.below(3) {
            if !bytes.is_empty() {
                damage(&mut bytes, &mut coins);
            }
        }
        disk.put(path, bytes.clone());
        let check = |disk: &SimulatedDisk| {
            let (_, history) = open(disk)?;
            let covered = history.snapshot.as_ref().map_or(0, |(position, _)| *position as usize);
            let found = records(&history);
            assert_eq!(found[..], all[covered..covered + found.len()], "seed {seed}");
            assert!(history.snapshot.is_none_or(|(_, bytes)| bytes == b"a hundred"));
            Ok::<_, Error>(covered + found.len())
        };
        match check(&copy(&disk)) {
            Ok(count) if count == all.len() => whole += 1,
            Ok(_) => part += 1,
            Err(Error::Damaged { file, offset, .. }) => {
                refused += 1;
                assert!(files(&disk, "").contains(&file), "seed {seed}: {file:?}");
                assert!(offset as usize <= disk.bytes(&file).unwrap().len());
                let repaired = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
                assert!(!repaired.aside.is_empty());
                // Nothing is gone: the file is as it was, or it lies aside, or its end does.
                let kept = disk.bytes(path).unwrap_or_default();
                let mut aside = repaired.aside.iter().map(|aside| disk.bytes(aside).unwrap());
                let found =
                    aside.any(|aside| aside == bytes || [&kept[..], &aside].concat() == bytes);
                assert!(found || kept == bytes, "seed {seed}");
                let kept = check(&disk).unwrap();
                assert_eq!(kept as u64, repaired.end.0);
                assert!(repaired.end.0 + repaired.lost <= all.len() as u64, "seed {seed}");
            }
            Err(Error::Foreign { .. }) => refused += 1,
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    println!("{whole} whole, {part} shorter, {refused} refused");
    assert!(whole > 0 && part > 500 && refused > 5_000);
}

#[test]
fn damage_before_the_last_commit_is_refused_with_file_and_offset() {
    let (disk, _) = one_segment(10, 4);
    let path = &files(&disk, ".log")[0];
    let sound = disk.bytes(path).unwrap();
    // Record 7 begins after seven headers and seven records.
    let begin = 48 + (0..7).map(|number| 16 + record(number).len()).sum::<usize>();
    for at in begin..begin + 16 + record(7).len() {
        let disk = copy(&disk);
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        disk.put(path, bytes);
        let error = open(&disk).unwrap_err();
        let text = error.to_string();
        let Error::Damaged { file, offset, .. } = error else { panic!("{text}") };
        assert_eq!((&file, offset as usize), (path, begin));
        assert!(text.contains("`repair` keeps what comes before"), "{text}");
        let repaired = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
        assert_eq!((repaired.end.0, repaired.lost), (7, 33));
    }
}

#[test]
fn after_a_clean_end_damage_in_the_last_commit_is_refused_too() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    journal.append(b"one").unwrap();
    journal.close().unwrap();
    let path = &files(&disk, ".log")[0];
    let mut bytes = disk.bytes(path).unwrap();
    bytes[48 + 16] ^= 1;
    disk.put(path, bytes);
    assert!(matches!(open(&disk), Err(Error::Damaged { offset: 48, .. })));
}

#[test]
fn whole_records_that_are_removed_doubled_or_swapped_are_noticed() {
    let (disk, all) = one_segment(4, 3);
    let path = &files(&disk, ".log")[0];
    let sound = disk.bytes(path).unwrap();
    let begins: Vec<usize> = (0..=12)
        .map(|count| 48 + (0..count).map(|number| 16 + record(number).len()).sum::<usize>())
        .collect();
    for index in 0..12 {
        let part = |index: usize| sound[begins[index]..begins[index + 1]].to_vec();
        let (before, after) = (&sound[..begins[index]], &sound[begins[index + 1]..]);
        let mut changed = vec![
            [before, after].concat(),
            [before, &part(index), &part(index), after].concat(),
            [before, &part(index), after, &part(index)].concat(),
        ];
        if index < 11 {
            let behind = &sound[begins[index + 2]..];
            changed.push([before, &part(index + 1), &part(index), behind].concat());
        }
        for bytes in changed {
            let disk = copy(&disk);
            disk.put(path, bytes);
            match open(&disk) {
                Ok((_, history)) => {
                    let found = records(&history);
                    assert_eq!(found[..], all[..found.len()]);
                    assert!(found.len() >= 9, "only the last commit can be torn");
                }
                Err(error) => assert!(matches!(error, Error::Damaged { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn records_of_another_segment_are_noticed_even_with_the_same_numbers() {
    let disk = SimulatedDisk::new();
    for _ in 0..2 {
        let (journal, _) = open(&disk).unwrap();
        append(&journal, &(0..5).map(record).collect::<Vec<_>>());
    }
    let [first, second] = &files(&disk, ".log")[..] else { panic!("each opening has its segment") };
    let (bytes, other) = (disk.bytes(first).unwrap(), disk.bytes(second).unwrap());
    assert_eq!(bytes.len(), other.len());
    disk.put(first, [&bytes[..48], &other[48..]].concat());
    assert!(matches!(open(&disk), Err(Error::Damaged { offset: 48, .. })));
}

#[test]
fn zeros_at_the_end_are_cut_off() {
    let (disk, all) = one_segment(5, 3);
    let path = &files(&disk, ".log")[0];
    let mut bytes = disk.bytes(path).unwrap();
    bytes.resize(bytes.len() + 10_000, 0);
    disk.put(path, bytes);
    let (_, history) = open(&disk).unwrap();
    assert_eq!(records(&history), all);
    assert_eq!(history.torn.unwrap().bytes, 10_000);
}

#[test]
fn a_missing_segment_is_refused_and_a_repair_keeps_what_comes_before() {
    use feedline_journal::Disk;
    let (disk, all) = several_segments();
    let segments = files(&disk, ".log");
    assert!(segments.len() > 4);
    for (index, missing) in segments.iter().enumerate().take(segments.len() - 1) {
        let disk = copy(&disk);
        disk.remove(missing).unwrap();
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("are missing"), "{error}");
        let repaired = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
        assert_eq!(repaired.aside.len(), segments.len() - index - 1);
        assert!(repaired.lost > 0);
        let (journal, history) = open(&disk).unwrap();
        assert_eq!(journal.next(), repaired.end);
        let found = records(&history);
        assert_eq!(found[..], all[100..100 + found.len()]);
    }
}

#[test]
fn a_damaged_snapshot_is_refused_and_a_repair_uses_an_older_one() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    append(&journal, &(0..5).map(record).collect::<Vec<_>>());
    journal.snapshot(journal.next(), b"five").unwrap();
    append(&journal, &(5..9).map(record).collect::<Vec<_>>());
    journal.sync().unwrap();
    let before = copy(&disk);
    journal.snapshot(journal.next(), b"nine").unwrap();
    // As after a crash before the old files were removed.
    for path in files(&before, "-") {
        disk.put(&path, before.bytes(&path).unwrap());
    }
    let disk = copy(&disk);
    let newest = files(&disk, ".snap")[1].clone();
    let mut bytes = disk.bytes(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    disk.put(&newest, bytes);
    let error = open(&disk).unwrap_err();
    assert!(error.to_string().contains("its checksum is wrong"), "{error}");
    let repaired = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
    assert_eq!((repaired.end.0, repaired.lost, repaired.aside.len()), (9, 0, 1));
    let (_, history) = open(&disk).unwrap();
    assert_eq!(history.snapshot.as_ref().unwrap().1, b"five");
    assert_eq!(records(&history), (5..9).map(record).collect::<Vec<_>>());
}

#[test]
fn without_any_snapshot_that_can_be_read_a_repair_leaves_an_empty_journal_and_the_generation_grows()
{
    let (disk, _) = several_segments();
    let path = &files(&disk, ".snap")[0];
    disk.put(path, vec![0; 100]);
    let repaired = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
    assert_eq!((repaired.end.0, repaired.lost), (0, 300));
    let (journal, history) = open(&disk).unwrap();
    assert_eq!((records(&history).len(), journal.generation().0), (0, 4));
}

#[test]
fn a_lost_segment_after_the_snapshot_is_refused_and_a_repair_goes_on_from_the_snapshot() {
    use feedline_journal::Disk;
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    journal.append(b"one").unwrap();
    journal.snapshot(journal.next(), b"state").unwrap();
    drop(journal);
    files(&disk, ".log").iter().for_each(|path| disk.remove(path).unwrap());
    assert!(matches!(open(&disk), Err(Error::Damaged { .. })));
    repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
    let (journal, history) = open(&disk).unwrap();
    assert_eq!((journal.next().0, history.snapshot.unwrap().1), (1, b"state".to_vec()));
}

#[test]
fn a_repair_of_a_sound_journal_changes_nothing() {
    let (disk, all) = several_segments();
    let before: Vec<_> = files(&disk, "").iter().map(|path| disk.bytes(path)).collect();
    let repaired = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
    assert_eq!((repaired.end.0, repaired.lost, repaired.aside.len()), (all.len() as u64, 0, 0));
    let after: Vec<_> = files(&disk, "").iter().map(|path| disk.bytes(path)).collect();
    assert_eq!(before, after);
}

#[test]
fn a_repair_that_is_interrupted_anywhere_can_be_repeated() {
    let (disk, all) = several_segments();
    let path = &files(&disk, ".log")[1];
    let mut bytes = disk.bytes(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    disk.put(path, bytes);
    let trial = copy(&disk);
    let expected = repair_on(Arc::new(trial.clone()), folder(), &small()).unwrap();
    for stop in 0..trial.operations() {
        for seed in 0..8 {
            let disk = copy(&disk);
            disk.stop_at(stop);
            let _ = repair_on(Arc::new(disk.clone()), folder(), &small());
            let disk = disk.after_crash(seed);
            let again = repair_on(Arc::new(disk.clone()), folder(), &small()).unwrap();
            assert_eq!(again.end, expected.end, "stopped at {stop}, seed {seed}");
            let (_, history) = open(&disk).unwrap();
            let found = records(&history);
            assert_eq!(found[..], all[100..100 + found.len()]);
            assert_eq!(100 + found.len() as u64, expected.end.0);
        }
    }
}

#[test]
fn what_a_newer_release_wrote_is_refused() {
    let (disk, _) = one_segment(2, 2);
    let older = Options { version: 2, ..small() };
    let error = open_with(&disk, older.clone()).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 3, known: 2, .. }));
    assert!(error.to_string().contains("was written by a newer release"), "{error}");
    assert!(matches!(
        repair_on(Arc::new(disk.clone()), folder(), &older),
        Err(Error::Newer { .. })
    ));
    let newer = Options { version: 4, ..small() };
    let (_, history) = open_with(&disk, newer).unwrap();
    assert!(history.records.iter().all(|(_, version, _)| *version == 3));
}

#[test]
fn foreign_files_are_refused_if_they_bear_a_journals_name_and_left_alone_otherwise() {
    let (disk, all) = one_segment(2, 2);
    let notes = folder().join("notes.txt");
    disk.put(&notes, b"mine".to_vec());
    let (journal, history) = open(&disk).unwrap();
    assert_eq!(records(&history), all);
    drop(journal);
    assert_eq!(disk.bytes(&notes).unwrap(), b"mine");
    for name in ["journal-00000000000000000004.log", "journal-x.log", "snapshot-7.snap"] {
        let disk = copy(&disk);
        disk.put(&folder().join(name), b"something else that is long enough for any header".into());
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, Error::Foreign { .. }), "{name}: {error}");
        assert!(repair_on(Arc::new(disk.clone()), folder(), &small()).is_err());
    }
}
