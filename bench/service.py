"""Feedline's service against tf.data service: bytes, small elements, ends of epochs, and photos.

    .venv/bin/python bench/service.py --images /path/to/images --rounds 3

Every run starts its own dispatcher and workers, in processes of their own, and counts the CPU time of
all of them. The raw speed of loopback is in `limit`'s `wire`.
"""

import argparse

from rounds import Contestant, feedline, interleave, notes, number, peer, spread, table, times

CASES = {
    "big": ("elements of 1 MiB", ["--warm", 200, "--batches", 3000]),
    "scalars": ("scalars", ["--warm", 2000, "--batches", 60000]),
    "windows": ("windows of one element, dealt and journalled", ["--warm", 2000, "--batches", 60000]),
    "end": ("end of an epoch", []),
    "w1": ("W1, float32, one worker", ["--warm", 8, "--batches", 40]),
    "w1x2": ("W1, float32, two workers", ["--warm", 8, "--batches", 40]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", help="folder of JPEG files; without it W1 is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="big,scalars,windows,end,w1,w1x2")
    parser.add_argument("--without-peers", action="store_true")
    given = parser.parse_args()
    for case in given.cases.split(","):
        title, settings = CASES[case]
        workers = 2 if case == "w1x2" else 1
        case = "w1" if case == "w1x2" else case
        if case == "w1" and not given.images:
            continue
        arguments = ["--case", case, *settings, "--workers", workers]
        threads = 2 if case == "w1" and workers == 1 else 1
        arguments += ["--threads", threads]
        if given.images:
            arguments += ["--images", given.images]
        ours = {"big": ["tcp", "shared"], "scalars": ["tcp", "any"], "end": ["shared", "any"]}
        ours["windows"] = ["any"]
        variants = ours.get(case, ["local", "tcp", "bytes", "shared"])
        contestants = [
            Contestant(
                f"Feedline, {variant}", feedline("feedline_service.py", *arguments, "--variant", variant)
            )
            for variant in variants
        ]
        if not given.without_peers:
            # Single elements cost it a thousand times as much: fewer of them suffice.
            small = case in ("scalars", "windows")
            fewer = ["--warm", 200, "--batches", 3000] if small else []
            base = Contestant("tf.data service", peer("tf", "tf_service.py", *arguments, *fewer))
            contestants.append(base)
            if case == "w1":
                local = peer("tf", "tf_service.py", *arguments, "--variant", "local")
                contestants.append(Contestant("tf.data, local", local))
        interleave(contestants, given.rounds, timeout=300)
        print(f"\n## {title}\n")
        print(report(case, contestants))
        print("\n" + notes(contestants, f"medians of {given.rounds} rounds (least–most)"), flush=True)


def report(case: str, contestants: list[Contestant]) -> str:
    base = next((one for one in contestants if one.name == "tf.data service"), contestants[0])
    if case == "end":
        rows = [[one.name, spread(one.values("end_ms"), 2)] for one in contestants]
        return table(["", "ms from the last element to the end"], rows)
    rows = []
    for one in contestants:
        rate, cpu = one.median("elements_per_s"), one.median("cpu_s_per_1000")
        rows.append(
            [
                one.name,
                spread(one.values("elements_per_s"), 0),
                number(one.median("gib_per_s"), 3),
                number(one.median("cpu_ms_per_mib"), 3),
                spread(one.values("cpu_s_per_1000"), 4),
                times(rate, base.median("elements_per_s")),
                times(cpu, base.median("cpu_s_per_1000")),
            ]
        )
    head = ["", "elements/s", "GiB/s", "CPU ms/MiB", "CPU-s per 1,000 samples"]
    return table([*head, f"rate, to {base.name}", f"CPU, to {base.name}"], rows)


if __name__ == "__main__":
    main()
