"""A service that asks for tokens and speaks TLS, as the documentation sets it up."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import feedline as fl
from conftest import picture, png

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.terminate()
    for one in started:
        one.wait(30)
        for stream in (one.stdout, one.stderr):
            if stream is not None:
                stream.close()


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def command(folder: Path) -> dict[str, str]:
    """An environment in which `feedline` is this package's command."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    script = tools / "feedline"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m feedline "$@"\n')
    script.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FEEDLINE_")}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    paths = [str(Path(fl.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = ":".join(path for path in paths if path)
    return environment


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A folder with photos, and what the page's names are on this host."""
    for number in range(64):
        folder = tmp_path / "data" / "train" / ("cat" if number % 3 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(picture(number, 40, 50)))
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FEEDLINE_") and name != "FEEDLINE_CACHE_DIR":
            monkeypatch.delenv(name)
    ports = [str(port()) for _ in range(3)]
    return {
        "feedline://head:7070": f"feedline://127.0.0.1:{ports[0]}",
        "0.0.0.0:7070": f"0.0.0.0:{ports[0]}",
        "0.0.0.0:7071": f"0.0.0.0:{ports[1]}",
        "127.0.0.1:7080": f"127.0.0.1:{ports[2]}",
        "--advertise worker-1": "--advertise 127.0.0.1",
        "/var/lib/feedline": str(tmp_path / "journal"),
        "/data": str(tmp_path / "data"),
    }


def run(
    here: dict[str, str], folder: Path, processes: list[subprocess.Popen[str]]
) -> tuple[dict[str, object], list[str]]:
    """Runs all of the page; what its Python left, and what its commands said."""
    environment, scope, said = command(folder), {}, []
    for kind, block in blocks():
        for name, value in here.items():
            block = block.replace(name, value)
        if kind == "python":
            exec(compile(block, PAGE.name, "exec"), scope)
        elif block.startswith(("feedline dispatcher", "feedline worker")):
            serving = subprocess.Popen(
                ["sh", "-c", f"exec {block}"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(serving)
            assert serving.stdout is not None and serving.stderr is not None
            line = serving.stdout.readline()
            assert line, serving.stderr.read()
            said.append(line)
        else:
            done = subprocess.run(
                ["sh", "-e", "-c", block], env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
    return scope, said


def test_the_page_runs_from_the_first_key_to_the_status(
    here: dict[str, str], tmp_path: Path, processes: list[subprocess.Popen[str]]
):
    scope, said = run(here, tmp_path, processes)
    assert "resnet" in said[-1] and "127.0.0.1" in said[-1], said[-1]
    ds, url = scope["ds"], here["feedline://head:7070"]
    assert isinstance(ds, fl.Dataset)

    # The same samples as here, bit for bit.
    both = [batch["image"].tobytes() for batch in ds.loader()]
    loader = ds.distribute(url, job="again", token="client.token", ca="certs/ca.pem")
    assert [batch["image"].tobytes() for batch in loader] == both
    loader.close()

    # The environment does as well.
    os.environ["FEEDLINE_TOKEN_FILE"], os.environ["FEEDLINE_CA"] = "client.token", "certs/ca.pem"
    try:
        loader = ds.distribute(url, job="environment")
        assert len(list(loader)) == len(both)
        loader.close()
        # And a cluster of one's own needs nothing of it.
        with fl.LocalCluster(workers=1) as cluster:
            loader = ds.distribute(cluster.url, job="own")
            assert len(list(loader)) == len(both)
            loader.close()
    finally:
        del os.environ["FEEDLINE_TOKEN_FILE"], os.environ["FEEDLINE_CA"]

    for token, ca, words in [
        (None, "certs/ca.pem", "token is needed"),
        ("worker.token", "certs/ca.pem", "role worker"),
        ("nowhere.token", "certs/ca.pem", "nowhere.token"),
        ("client.token", "nowhere.pem", "nowhere.pem"),
    ]:
        with pytest.raises((ValueError, RuntimeError, OSError), match=words):
            next(iter(ds.distribute(url, job="wrong", token=token, ca=ca, timeout=10)))
    with pytest.raises(ValueError, match="two files"):
        ds.distribute(url, job="wrong", ca="certs/ca.pem", certificate="certs/client.pem")  # type: ignore[arg-type]

    # What lies elsewhere is not read by workers, though it could be read here.
    elsewhere = tmp_path / "elsewhere" / "a"
    elsewhere.mkdir(parents=True)
    (elsewhere / "0.png").write_bytes(png(picture(0)))
    other = fl.images(str(tmp_path / "elsewhere")).decode().resize((8, 8)).batch(1)
    loader = other.distribute(url, job="elsewhere", token="client.token", ca="certs/ca.pem")
    with pytest.raises(Exception, match="only files below"):
        next(iter(loader))
    loader.close()


def test_a_token_is_renewed_while_batches_come(
    here: dict[str, str], tmp_path: Path, processes: list[subprocess.Popen[str]]
):
    run(here, tmp_path, processes)
    environment = command(tmp_path)
    photos = fl.images(str(tmp_path / "data" / "train")).repeat(20)
    ds = photos.decode().resize((8, 8)).batch(16)

    def renew() -> None:
        sign = "feedline token --key feedline.key --role client --ttl 3s --out short.token"
        subprocess.run(["sh", "-c", sign], env=environment, check=True, timeout=60)

    renew()
    url = here["feedline://head:7070"]
    loader = ds.distribute(
        url, job="long", order="any", token="short.token", ca="certs/ca.pem", shared_memory=False
    )
    samples, last, renewed = 0, time.monotonic(), 0
    for batch in loader:
        samples += len(batch["label"])
        time.sleep(0.06)
        if time.monotonic() - last > 1.2:
            renew()
            last, renewed = time.monotonic(), renewed + 1
    assert samples == 64 * 20 and renewed >= 3
    loader.close()
