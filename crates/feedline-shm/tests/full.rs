//! When there is no memory, that is an error: never a signal.
//!
//! The system is not asked for more than it has. A process started for the purpose may only make
//! files of 256 KiB, which stops a segment at the same place as a full memory does.

#![expect(clippy::unwrap_used, reason = "the test ends otherwise")]

use feedline_shm::Segments;
use std::process::Command;

const CHILD: &str = "FEEDLINE_TEST_FULL";

#[test]
fn ten_thousand_segments_that_cannot_be_had_are_ten_thousand_errors() {
    if std::env::var_os(CHILD).is_some() {
        return refused();
    }
    let name = "ten_thousand_segments_that_cannot_be_had_are_ten_thousand_errors";
    let program = std::env::current_exe().unwrap();
    // Ignored signals stay ignored: the limit is then an error, as a full memory is.
    let script = "trap '' XFSZ; ulimit -f 256; exec \"$0\" --exact \"$1\"";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(program).arg(name).env(CHILD, "1");
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn refused() {
    let segments = Segments::new(64 << 20);
    for _ in 0..10_000 {
        let error = segments.take(1 << 20).unwrap_err().to_string();
        assert!(error.contains("shared memory for 1048576 bytes"), "{error}");
    }
    assert_eq!(segments.bytes(), 0);
    let mut small = segments.take(1000).unwrap().unwrap();
    small.fill(1);
}
