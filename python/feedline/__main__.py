"""The `feedline` command, as the package brings it."""

import signal
import sys

from . import _core


def main() -> int:
    # The command runs in Rust, where Python's own handler for Ctrl-C would not be asked.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.main(["feedline", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
