#!/usr/bin/env bash
# Sees to the tools of `make check`: rustfmt, clippy and cargo-deny. $1 is the folder for what is
# installed just for this project.
set -euo pipefail
folder=$1
mkdir -p "$folder"

for component in rustfmt clippy; do
    case $component in
        rustfmt) probe="cargo fmt --version" ;;
        clippy) probe="cargo clippy --version" ;;
    esac
    $probe >/dev/null 2>&1 || rustup component add "$component"
done

if ! cargo deny --version >/dev/null 2>&1; then
    echo "building cargo-deny (once; a minute or two)"
    # It runs for a second: building it without optimisation halves the wait.
    CARGO_PROFILE_DEV_DEBUG=false CARGO_TARGET_DIR="$folder/build" \
        cargo install --quiet --locked --debug --root "$folder" cargo-deny@0.20.2
    rm -rf "$folder/build"
fi
