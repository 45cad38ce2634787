"""Installs the frameworks that `make test-frameworks` needs into the environment it runs in.

PyPI's torch for Linux is the CUDA build. Its libraries refuse to load without most of NVIDIA's
packages, even where only the CPU is used, but triton (1 GB) and the CUDA bindings for Python are
never touched there: everything that torch asks for is installed except those.
"""

import subprocess
import sys
from importlib.metadata import requires

# The versions that the golden values were made with.
PACKAGES = ["torch==2.15.0", "torchvision==0.29.2"]
OTHERS = [
    # A server of objects that others wrote.
    "boto3>=1.35",
    "flask>=3",
    "flask-cors>=5",
    "jax>=0.7",
    "moto[s3]>=5",
    "nibabel>=5.3",
    "numpy>=1.26",
    "pillow==13.0.0",
    "pyarrow>=18",
    "pytest>=8",
    "scipy>=1.14",
]
UNUSED = ("triton", "cuda-bindings")


def pip_install(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", *arguments]
    subprocess.run(command, check=True)


def main() -> None:
    pip_install("--no-deps", *PACKAGES)
    needs = [
        need
        for package in ("torch", "torchvision")
        for need in requires(package) or []
        if "extra ==" not in need and not need.startswith(("torch", *UNUSED))
    ]
    pip_install(*needs, *OTHERS)


if __name__ == "__main__":
    main()
