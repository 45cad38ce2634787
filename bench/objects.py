"""Reading objects over HTTP, against the least it could cost.

A server in a process of its own holds objects in memory and answers after 0, 10 or 50 ms. Feedline reads
an epoch of them in shuffled order; a bare client does the same reads with as many threads, each with one
connection of Python's own http.client, and with as many connections in one thread (asyncio), which does
nothing but move bytes. Printed: objects a second, CPU seconds of the
reading process for 1,000 objects, and the ratio to the fastest bare client.

usage: python bench/objects.py [--objects 2000] [--size 100000] [--rounds 3] [--latency 0 10 50]
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import random
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import feedline as fl


def serve(ready, count: int, size: int, latency: float) -> None:
    """A server of equal objects, as cheap as Python can make one."""
    body = random.Random(0).randbytes(size)
    etag = '"one"'
    whole = (
        f"HTTP/1.1 206 Partial Content\r\nContent-Length: {size}\r\nETag: {etag}\r\n"
        f"Content-Range: bytes 0-{size - 1}/{size}\r\n\r\n"
    ).encode() + body
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: {etag}\r\n\r\n".encode()

    class Objects(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.held = transport, b""

        def data_received(self, data):
            self.held += data
            while (end := self.held.find(b"\r\n\r\n")) >= 0:
                request, self.held = self.held[:end], self.held[end + 4 :]
                answer = head if request.startswith(b"HEAD") else whole
                if latency and answer is whole:
                    loop = asyncio.get_running_loop()
                    loop.call_later(latency, self.transport.write, answer)
                else:
                    self.transport.write(answer)

    async def run():
        server = await asyncio.get_running_loop().create_server(Objects, "127.0.0.1", 0)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work) -> tuple[float, float]:
    start, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - start, cpu() - before


def by_feedline(loader, count: int):
    def work():
        rows = sum(len(batch["data"]) for batch in loader)
        assert rows == count, rows

    return work


def by_threads(port: int, names: list[str], size: int, threads: int):
    """One connection a thread."""
    local = threading.local()

    def get(name: str) -> None:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", port)
        local.connection.request("GET", "/" + name, headers={"Range": f"bytes=0-{size - 1}"})
        assert len(local.connection.getresponse().read()) == size

    def work():
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(get, names))

    return work


def by_tasks(port: int, names: list[str], size: int, connections: int):
    """Many connections in one thread: nothing but the bytes."""

    async def one(queue: list[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        while queue:
            name = queue.pop()
            writer.write(f"GET /{name} HTTP/1.1\r\nRange: bytes=0-{size - 1}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(size)
        writer.close()

    async def all_of_them() -> None:
        queue = list(names)
        await asyncio.gather(*(one(queue) for _ in range(connections)))

    return lambda: asyncio.run(all_of_them())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, nargs="*", default=[0, 10, 50])
    parser.add_argument("--reads", type=int, default=64, help="reads at once of the bare clients")
    args = parser.parse_args()
    count, size = args.objects, args.size
    width = len(str(count - 1))
    names = [f"x-{number:0{width}}" for number in range(count)]
    for latency in args.latency:
        ready = multiprocessing.Queue()
        server = multiprocessing.Process(
            target=serve, args=(ready, count, size, latency / 1000), daemon=True
        )
        server.start()
        port = ready.get()
        pattern = f"http://127.0.0.1:{port}/x-{{{names[0][2:]}..{names[-1][2:]}}}"
        # One loader for all rounds: the tuner learns in the first.
        loader = fl.files(pattern).shuffle(seed=0).batch(32).loader()
        works = {
            "feedline": by_feedline(loader, count),
            "threads": by_threads(port, names, size, args.reads),
            "tasks": by_tasks(port, names, size, args.reads),
        }
        rates, used = {}, {}
        for name, work in works.items():
            # The first round warms connections up, and lets the tuner settle. Feedline reads ahead, also
            # across the end of an epoch: rounds follow each other without a pause, so what was read
            # before the clock started is about what is read ahead when it stops.
            work()
            seconds, cpu_seconds = timed(lambda: [work() for _ in range(args.rounds)])
            rates[name] = count * args.rounds / seconds
            used[name] = cpu_seconds * 1000 / (count * args.rounds)
            if name == "feedline":
                loader.close()
        fastest = max(rates["threads"], rates["tasks"])
        for name in works:
            print(
                json.dumps(
                    {
                        "latency_ms": latency,
                        "client": name,
                        "objects_per_second": round(rates[name]),
                        "megabytes_per_second": round(rates[name] * size / 1e6),
                        "cpu_seconds_per_1000": round(used[name], 3),
                        "ratio_to_fastest_bare": round(rates[name] / fastest, 3),
                    }
                ),
                flush=True,
            )
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
