#!/usr/bin/env bash
# Gives a target of fuzz/ (or all) changed inputs for some seconds: under libFuzzer, which learns which
# bytes matter, where there is a C++ compiler to build it with; by our own mutator otherwise.
# $1 is the target, $2 the seconds.
set -euo pipefail
target=$1 seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
built=${CARGO_TARGET_DIR:-$here/../target}
work=$built/fuzz fuzz=$built/debug/fuzz

cargo build --package feedline-fuzz --bin fuzz

if ! command -v c++ >/dev/null; then
    exec "$fuzz" "$target" "$seconds"
fi

# Only our own crates tell libFuzzer where they have been, so nothing else is compiled again.
RUSTC_WORKSPACE_WRAPPER=$here/fuzz-rustc.sh cargo build --package feedline-fuzz --bin libfuzzer \
    --features libfuzzer

targets=$target
[ "$target" != all ] || targets=$("$fuzz" list)
for target in $targets; do
    "$fuzz" corpus "$target" "$work/corpus/$target"
    mkdir -p "$work/found/$target"
    echo "$target: what it cannot take is written to $work/found/$target" >&2
    FEEDLINE_FUZZ=$target "$built/debug/libfuzzer" "$work/corpus/$target" \
        -max_total_time="$seconds" -max_len=16384 -malloc_limit_mb=512 -rss_limit_mb=4096 -timeout=10 \
        -artifact_prefix="$work/found/$target/" -verbosity=0 -print_final_stats=1
done
