#!/usr/bin/env bash
# Sees to the tools of `make check`: rustfmt and clippy.
set -euo pipefail
for component in rustfmt clippy; do
    case $component in
        rustfmt) probe="cargo fmt --version" ;;
        clippy) probe="cargo clippy --version" ;;
    esac
    $probe >/dev/null 2>&1 || rustup component add "$component"
done
