"""Holds all dependencies to the policy in deny.toml: licences, banned crates, sources.

    python scripts/dependencies.py

It needs nothing but cargo. `cargo deny check`, where it is installed, reads the same file and knows more:
texts of licences, and advisories.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = "registry+https://github.com/rust-lang/crates.io-index"


def allowed(expression: str, licences: set[str]) -> bool:
    """Whether a licence expression, such as `(MIT OR Apache-2.0) AND ISC`, can be met."""
    # A slash is how OR was written before.
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def either() -> bool:
        nonlocal at
        met = both()
        while at < len(words) and words[at] == "OR":
            at += 1
            met = both() or met
        return met

    def both() -> bool:
        nonlocal at
        met = one()
        while at < len(words) and words[at] == "AND":
            at += 1
            met = one() and met
        return met

    def one() -> bool:
        nonlocal at
        if at >= len(words):
            raise ValueError(expression)
        word = words[at]
        at += 1
        if word == "(":
            met = either()
            if at >= len(words) or words[at] != ")":
                raise ValueError(expression)
            at += 1
            return met
        if at < len(words) and words[at] == "WITH":
            word = f"{word} WITH {words[at + 1]}"
            at += 2
        return word in licences

    met = either()
    if at != len(words):
        raise ValueError(expression)
    return met


def complaints(package: dict, policy: dict) -> list[str]:
    name = f"{package['name']} {package['version']}"
    found = []
    banned = {row["crate"]: row["reason"] for row in policy["bans"]["deny"]}
    if package["name"] in banned:
        found.append(f"{name} is banned: {banned[package['name']]}")
    if package["source"] is None:
        return found
    if package["source"] != CRATES:
        found.append(f"{name} comes from {package['source']}; only crates.io is allowed")
    licence = package["license"] or ""
    try:
        met = bool(licence) and allowed(licence, set(policy["licenses"]["allow"]))
    except ValueError:
        met = False
    if not met:
        found.append(f"{name} has the licence {licence or 'of a file'!r}, which deny.toml does not allow")
    return found


def main() -> None:
    policy = tomllib.loads((ROOT / "deny.toml").read_text())
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = metadata["packages"]
    found = [line for package in packages for line in complaints(package, policy)]
    for package in packages:
        if package["source"] is None:
            for dependency in package["dependencies"]:
                if dependency["req"] == "*" and dependency["path"] is None:
                    found.append(f"{package['name']} takes any version of {dependency['name']}; name one")
    if found:
        sys.exit("\n".join(found))
    print(f"{len(packages)} packages: licences, crates and sources as deny.toml allows")


if __name__ == "__main__":
    main()
