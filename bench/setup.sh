#!/usr/bin/env bash
# Makes the environments of the other loaders, each by itself, under .bench/venvs:
#
#     bench/setup.sh dali tf torch
#
# One that is there already is kept, and completed; remove its folder to make it again.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venvs=$root/.bench/venvs

[ $# -gt 0 ] || { echo "usage: bench/setup.sh dali|tf|torch ..." >&2; exit 2; }
for name in "$@"; do
    case $name in
        dali) packages=(nvidia-dali-cuda120) ;;
        tf) packages=(tensorflow-cpu) ;;
        torch) packages=(torch torchvision scipy) ;;
        *) echo "unknown loader: $name (known: dali, tf, torch)" >&2; exit 2 ;;
    esac
    missing=()
    for package in numpy "${packages[@]}"; do
        grep -qs "^${package//-/[-_]}==" "$venvs/$name/.complete" || missing+=("$package")
    done
    if [ ${#missing[@]} = 0 ]; then
        continue
    fi
    started=$SECONDS
    "$root/scripts/venv.sh" "$venvs/$name"
    "$venvs/$name/bin/python" -m pip install --quiet "${missing[@]}"
    "$venvs/$name/bin/python" -m pip freeze > "$venvs/$name/.complete"
    echo "$name: $((SECONDS - started)) s, $(du -sm "$venvs/$name" | cut -f1) MB"
done
