"""The golden values of the Rust tests are what torchvision, torch, SciPy and nibabel do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[2] / "crates/feedline-ops/tests/golden"


def test_the_stored_values_are_torchvisions():
    torchvision = pytest.importorskip("torchvision")
    stored = json.loads((GOLDEN / "cases.json").read_text())["made_with"]["torchvision"]
    installed = torchvision.__version__
    if installed.partition("+")[0] != stored.partition("+")[0]:
        pytest.skip(
            f"stored with torchvision {stored}, and {installed} is installed: run make.py --check by hand"
        )
    check = subprocess.run(
        [sys.executable, "-W", "ignore", GOLDEN / "make.py", "--check"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_stored_volumes_are_those_of_torch_scipy_and_nibabel():
    for needed in ("torch", "scipy", "nibabel"):
        pytest.importorskip(needed)
    check = subprocess.run(
        [sys.executable, "-W", "ignore", GOLDEN / "make_volumes.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stdout + check.stderr
