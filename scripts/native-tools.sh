#!/usr/bin/env bash
# Sees to the tools that building libjpeg-turbo needs: a C compiler, cmake, and on x86-64 nasm.
# $1 is the Python environment into which a missing cmake may go.
set -euo pipefail
venv=$1

for tool in cc cargo; do
    if ! command -v "$tool" >/dev/null; then
        case $tool in
            cc) echo "no C compiler found; on Debian and Ubuntu type: sudo apt-get install -y gcc libc6-dev" >&2 ;;
            cargo) echo "no Rust toolchain found; see https://rustup.rs" >&2 ;;
        esac
        exit 1
    fi
done

wanted=(cmake)
# Elsewhere the SIMD code is written in C. Without nasm the build would succeed on x86-64 as well,
# but decode JPEGs several times slower, so its absence is an error here.
case $(uname -m) in x86_64 | amd64 | i?86) wanted+=(nasm) ;; esac

missing() {
    local tool
    for tool in "${wanted[@]}"; do
        command -v "$tool" >/dev/null || printf '%s ' "$tool"
    done
}

lacking=$(missing); lacking=${lacking% }
[ -n "$lacking" ] || exit 0

if command -v apt-get >/dev/null; then
    as_root=()
    if [ "$(id -u)" != 0 ] && [ -n "${CI:-}" ] && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    fi
    if [ "$(id -u)" = 0 ] || [ ${#as_root[@]} -gt 0 ]; then
        echo "installing $lacking"
        ${as_root[@]+"${as_root[@]}"} apt-get update -qq
        # shellcheck disable=SC2086  # a list of words
        ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $lacking >/dev/null
    fi
fi

# PyPI has a cmake that needs no rights, but no nasm.
if ! command -v cmake >/dev/null; then
    "$venv/bin/python" -m pip install --quiet 'cmake>=3.20' || true
fi

lacking=$(missing); lacking=${lacking% }
[ -n "$lacking" ] || exit 0
echo "building Feedline needs these tools, which are missing: $lacking" >&2
echo "please type one of" >&2
echo "    sudo apt-get install -y $lacking" >&2
echo "    sudo dnf install -y $lacking" >&2
echo "    brew install $lacking" >&2
exit 1
