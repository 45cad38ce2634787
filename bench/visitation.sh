#!/usr/bin/env bash
# visitation.sh: what exactly-once costs beyond at-most-once: instructions of the dispatcher and of the
# client's cursor for each window, counted by callgrind, and events that are written down.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "needs valgrind: apt-get install -y valgrind" >&2; exit 1; }
cargo build --release --quiet -p feedline-limit --bin protocol

count() { # WINDOWS AT_ONCE [at-most-once] -> "instructions events"
    local folder
    folder=$(mktemp -d)
    valgrind --tool=callgrind --callgrind-out-file="$folder/out" \
        target/release/protocol "$@" >"$folder/said" 2>"$folder/log"
    python3 - "$folder" <<'PY'
import pathlib, re, sys
folder = pathlib.Path(sys.argv[1])
total = re.search(r"^(?:summary|totals): (\d+)", (folder / "out").read_text(), re.M)[1]
print(total, re.search(r"events +(\d+)", (folder / "said").read_text())[1])
PY
    rm -r "$folder"
}

echo "| windows at once | at-most-once: instructions, events a window | exactly-once | more |"
echo "|---|---|---|---|"
for at_once in 1 4 16; do
    # What is not per window cancels out between two lengths.
    python3 - "$at_once" $(count 2000 $at_once at-most-once) $(count 12000 $at_once at-most-once) \
        $(count 2000 $at_once) $(count 12000 $at_once) <<'PY'
import sys
at_once, *numbers = map(int, sys.argv[1:])
(less, short), (more, long) = ((numbers[k + 2] - numbers[k], numbers[k + 3] - numbers[k + 1]) for k in (0, 4))
print(
    f"| {at_once} | {less / 1e4:,.0f}, {short / 1e4:.3f} | {more / 1e4:,.0f}, {long / 1e4:.3f} "
    f"| {100 * (more / less - 1):+.2f} % |"
)
PY
done
