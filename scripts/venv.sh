#!/usr/bin/env bash
# Makes a Python environment at $1, with the newest suitable interpreter there is.
set -euo pipefail
target=$1

# An environment that works is kept: only its packages may need an update.
if "$target/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

python=
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "Feedline needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi

# Debian and Ubuntu ship Python without what `python -m venv` needs.
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
    else
        echo "this Python cannot make virtual environments; on Debian and Ubuntu type:" >&2
        echo "    sudo apt-get install -y $package" >&2
        exit 1
    fi
fi

rm -rf "$target"
"$python" -m venv "$target"
