"""The golden values of the Rust tests are what torchvision, torch, SciPy and nibabel do.

`scripts/frameworks.py` installs the versions they were made with.
"""

import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[2] / "crates/feedline-ops/tests/golden"


@pytest.mark.parametrize("script", ["make.py", "make_volumes.py"])
def test_the_stored_values_are_the_frameworks(script: str):
    check = subprocess.run(
        [sys.executable, "-W", "ignore", GOLDEN / script, "--check"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr
