#!/usr/bin/env bash
# overhead.sh [IMAGES]: instructions that the always-on counters add, counted by callgrind, for tiny
# samples (numbers) and, if a folder of JPEG files is named, for images.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "needs valgrind: apt-get install -y valgrind" >&2; exit 1; }
cargo build --release --quiet -p feedline-limit --bin overhead

count() { # PLAN SAMPLES on|off -> instructions per prepared sample
    local out folder
    folder=$(mktemp -d)
    out=$(valgrind --tool=callgrind --callgrind-out-file="$folder/out" \
        target/release/overhead "$1" "$2" "$3" 2>"$folder/log")
    python3 - "$folder/out" "$out" <<'PY'
import json, re, sys
total = int(re.search(r"^(?:summary|totals): (\d+)", open(sys.argv[1]).read(), re.M)[1])
print(total / json.loads(sys.argv[2])["prepared"])
PY
    rm -r "$folder"
}

report() { # NAME PLAN SAMPLES
    local on off
    off=$(count "$2" "$3" off)
    on=$(count "$2" "$3" on)
    python3 -c "
on, off = $on, $off
print(f'| $1 | {off:,.0f} | {on:,.0f} | {100 * (on / off - 1):+.2f} % |')"
}

echo "| samples | instructions each, counters off | on | overhead |"
echo "|---|---|---|---|"
report "numbers, shuffled, batches of 256" "range count=100000000 | shuffle | batch size=256" 1000000
if [ -n "${1:-}" ]; then
    report "JPEG files, W1" "images path=$1 | shuffle | decode | random_resized_crop size=224 | \
flip_horizontal | normalize mean=[0.485,0.456,0.406] std=[0.229,0.224,0.225] | layout to=CHW | \
batch size=16" 96
fi
