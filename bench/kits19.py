"""Makes volumes shaped like KiTS19's, for the benchmarks of slow samples.

    python bench/kits19.py npy DIR --masks KITS19 --count 18       # (1, D, H, W), as MLPerf preprocesses
    python bench/kits19.py npy DIR --count 18 --scale 20           # the same in a twentieth of the bytes
    python bench/kits19.py nifti DIR --masks KITS19 --count 8      # raw: imaging and segmentation

KITS19 is a folder with `case_*/segmentation.nii.gz`; the environment variable `KITS19` names it, too.
Without one, masks are drawn. What is in DIR already is kept, so another run goes on where one ended.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "unet3d"))
import volumes  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("form", choices=("npy", "nifti"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--masks", type=Path, default=os.environ.get("KITS19"), help="folder of real masks")
    parser.add_argument("--count", type=int, default=18, help="volumes, at even quantiles of size")
    parser.add_argument("--scale", type=float, default=1, help="divide the voxels of each by this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    cases = volumes.cases(options.masks, options.count)
    start = time.perf_counter()
    for done, case in enumerate(cases, 1):
        if options.form == "npy":
            volumes.make_preprocessed(case, options.folder, options.seed, options.scale)
        else:
            volumes.make_raw(case.scaled(options.scale), options.folder, options.seed)
        seconds = time.perf_counter() - start
        print(f"\r{done} of {len(cases)} volumes, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
    size = sum(file.stat().st_size for file in options.folder.rglob("*") if file.is_file())
    print(f"\n{options.folder}: {size / 1e9:.2f} GB", file=sys.stderr)


if __name__ == "__main__":
    main()
