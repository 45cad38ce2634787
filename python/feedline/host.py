"""Runs functions for the engine: `python -m feedline.host`, started by whoever allows functions.

The engine starts this program with a socket as its standard input, hands samples over in shared
memory, and gets what the functions make of them back in the same way. What is said there is
described at the top of the engine's module `host`. Nothing else listens to it, and it ends with
the process that started it.
"""

from __future__ import annotations

import os

# One process for each thread of the engine: more threads in each would only be in their way.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import array
import fcntl
import mmap
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .views import _DTYPES

HELLO = b"feedhst1"

LOAD, MAP, FILTER = 1, 2, 3
SAMPLE, YES, NO, FAILED = 0, 1, 2, 3

# As the engine numbers them.
NAMES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "bytes", "text",
)
BYTES, TEXT = NAMES.index("bytes"), NAMES.index("text")
NUMBERS = {name: number for number, name in enumerate(NAMES)}

_REQUEST = struct.Struct("<BBIIQH")
_SAMPLE = struct.Struct("<QQH")
_FIELD = struct.Struct("<BBHQQ")
_ANSWER = struct.Struct("<IQH")
_TWO = struct.Struct("<H")
_FOUR = struct.Struct("<I")

_ADD_SEALS = 1033
# Its size stays, and nobody but this process writes it.
_SEALS = 0x0001 | 0x0002 | 0x0004 | 0x0010
_GRAIN = 1 << 16
_LONGEST_TEXT = 60_000
_MOST_KNOWN = 1024

# Name, dtype (None for bytes and text), shape, offset, bytes, number of the dtype.
Place = tuple[str, Any, tuple[int, ...], int, int, int]


# What is said of a sample, where its fields begin and the last ends; its fields; their values.
Laid = tuple[tuple[bytes, list[int], int], list[Any], list[Any]]


class Refused(Exception):
    """What a function gave cannot be handed on."""


class Segment:
    """Memory that the engine can map, and only this process can write."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.descriptor = os.memfd_create("feedline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.descriptor, 0, size)
        self.memory = mmap.mmap(self.descriptor, size)
        fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEALS)
        self.announced = False

    def close(self) -> None:
        self.memory.close()
        os.close(self.descriptor)


class Host:
    """Answers the engine, one request after another."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._functions: dict[int, tuple[Callable[..., Any], bool]] = {}
        # What comes in.
        self._memory: mmap.mmap | None = None
        self._known: dict[bytes, list[Place]] = {}
        # Bytes that describe the fields of the sample before.
        self._block = 0
        # What goes out.
        self._segments: dict[int, Segment] = {}
        self._free: set[int] = set()
        self._last: Segment | None = None
        self._next = 0
        self._laid: dict[Any, tuple[bytes, list[int], int]] = {}

    def serve(self) -> None:
        """Answers until the engine hangs up."""
        self._connection.sendall(HELLO)
        space = socket.CMSG_SPACE(4)
        receive = self._connection.recvmsg
        while True:
            data, sent, _, _ = receive(8192, space)
            if not data:
                return
            descriptors = [*_descriptors(sent)]
            while len(data) < 4 or len(data) < 4 + _FOUR.unpack_from(data)[0]:
                more, sent, _, _ = receive(1 << 20, space)
                if not more:
                    return
                data += more
                descriptors += _descriptors(sent)
            self._request(data, descriptors)

    def _request(self, data: bytes, descriptors: list[int]) -> None:
        verb, flags, number, _, size, free = _REQUEST.unpack_from(data, 4)
        at = 4 + _REQUEST.size
        if free:
            self._free.update(struct.unpack_from(f"<{free}I", data, at))
            at += 4 * free
        if descriptors:
            # Arrays that a function kept stay as they are: the old memory goes with the last of them.
            self._memory = mmap.mmap(descriptors[0], size, mmap.MAP_SHARED, mmap.PROT_READ)
            for descriptor in descriptors:
                os.close(descriptor)
        (count,) = _TWO.unpack_from(data, at)
        at += 2
        parts: list[bytes | Laid] = []
        end = 0
        for _ in range(count):
            low, high, fields = _SAMPLE.unpack_from(data, at)
            at += _SAMPLE.size
            places, at = self._places(data, at, fields)
            try:
                if verb == LOAD:
                    code = self._values(places)["code"]
                    self._functions[number] = pickle.loads(code), bool(flags & 1)
                    parts.append(bytes((YES,)))
                    continue
                function, random = self._functions[number]
                values = self._values(places)
                if random:
                    made = function(values, _generator(low, high))
                else:
                    made = function(values)
                if verb == FILTER:
                    parts.append(bytes((YES if _decision(made) else NO,)))
                else:
                    laid = self._sample(made, end)
                    end = laid[0][2]
                    parts.append(laid)
            except BaseException as error:
                parts.append(_failure(error))
        segment = None
        if any(type(part) is not bytes for part in parts):
            # Only now is it known how much room they take together.
            try:
                segment = self._room(end or 1)
            except BaseException as error:
                parts = [_failure(error)] * count
        self._answer([part if type(part) is bytes else _write(part, segment) for part in parts], segment)

    # ---------------------------------------------------------------------------- what comes in

    def _places(self, data: bytes, at: int, fields: int) -> tuple[list[Place], int]:
        """Where the fields of a sample lie. Most samples look like one before."""
        known = self._known.get(data[at : at + self._block])
        if known is not None and len(known) == fields:
            return known, at + self._block
        places: list[Place] = []
        begin = at
        for _ in range(fields):
            number, dimensions, letters, offset, size = _FIELD.unpack_from(data, at)
            at += _FIELD.size
            shape = struct.unpack_from(f"<{dimensions}Q", data, at)
            at += 8 * dimensions
            name = data[at : at + letters].decode()
            at += letters
            dtype = None if number in (BYTES, TEXT) else _DTYPES[NAMES[number]]
            places.append((name, dtype, shape, offset, size, number))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._block = at - begin
        self._known[data[begin:at]] = places
        return places, at

    def _values(self, places: list[Place]) -> dict[str, Any]:
        memory = self._memory
        assert memory is not None
        values: dict[str, Any] = {}
        for name, dtype, shape, offset, size, number in places:
            if dtype is None:
                data = memory[offset : offset + size]
                values[name] = data if number == BYTES else data.decode()
            elif not size:
                values[name] = np.empty(shape, dtype)
            else:
                view = np.ndarray(shape, dtype, memory, offset)
                values[name] = view if shape else view[()]
        return values

    # ---------------------------------------------------------------------------- what goes out

    def _sample(self, made: Any, begin: int) -> Laid:
        """What a function gave, and where it is to lie from `begin` on."""
        if not isinstance(made, Mapping):
            raise Refused(f"it gave {_said(made)}, not a dict of fields")
        if not made:
            raise Refused("it gave a dict without fields")
        values: list[Any] = []
        key: list[Any] = [begin]
        for name, value in made.items():
            if type(name) is not str or not name:
                raise Refused(f"it gave a field with the name {name!r}; names are texts")
            value, number, shape, size = _described(name, value)
            values.append(value)
            key.append((name, number, shape, size))
        at = tuple(key)
        laid = self._laid.get(at)
        if laid is None:
            if len(self._laid) >= _MOST_KNOWN:
                self._laid.clear()
            laid = self._laid[at] = _lay(key[1:], begin)
        return laid, key, values

    def _room(self, size: int) -> Segment:
        """A segment of at least so many bytes that the engine does not read any more."""
        last = self._last
        if last is not None and last.number in self._free and last.size >= size:
            self._free.discard(last.number)
            return last
        for number in self._free:
            segment = self._segments[number]
            if segment.size >= size:
                self._free.discard(number)
                self._last = segment
                return segment
        wanted = max(_GRAIN, -(-(size + size // 4) // _GRAIN) * _GRAIN)
        segment = Segment(self._next, wanted)
        self._next += 1
        self._segments[segment.number] = segment
        self._last = segment
        return segment

    def _answer(self, parts: list[bytes], segment: Segment | None) -> None:
        # Those that are too small by now will not be used again.
        gone: list[int] = []
        if segment is not None and not segment.announced:
            gone = sorted(self._free)
            for number in gone:
                self._segments.pop(number).close()
            self._free.clear()
        new = segment is not None and not segment.announced
        head = _ANSWER.pack(
            0 if segment is None else segment.number,
            segment.size if segment is not None and new else 0,
            len(gone),
        )
        body = [head, struct.pack(f"<{len(gone)}I", *gone), _TWO.pack(len(parts)), *parts]
        message = b"".join(body)
        message = _FOUR.pack(len(message)) + message
        if segment is not None and new:
            segment.announced = True
            rights = array.array("i", [segment.descriptor])
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            message = message[self._connection.sendmsg([message], passed) :]
        if message:
            self._connection.sendall(message)


def _descriptors(sent: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in sent:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _generator(low: int, high: int) -> np.random.Generator:
    key = np.array((low, high), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _decision(made: Any) -> bool:
    if isinstance(made, (bool, np.bool_)):
        return bool(made)
    # Truth values of other libraries: one number of a kind that can only be true or false.
    found = np.asarray(made)
    if found.shape == () and found.dtype == np.bool_:
        return bool(found)
    raise Refused(f"it gave {_said(made)}, not True or False")


def _described(name: str, value: Any) -> tuple[Any, int, tuple[int, ...], int]:
    """A value as it is written: with the number of its dtype, its shape and its bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value, BYTES, (), len(value) if not isinstance(value, memoryview) else value.nbytes
    if isinstance(value, str):
        data = value.encode()
        return data, TEXT, (), len(data)
    try:
        found = np.asarray(value)
    except Exception as error:
        raise Refused(f"it gave {name} as {_said(value)}, which is no array: {error}") from None
    if not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="))
    number = NUMBERS.get(found.dtype.name)
    if number is None:
        raise Refused(
            f"it gave {name} as {_said(value)} of dtype {found.dtype}; fields are numbers, truth "
            "values, bytes and text"
        )
    return found, number, found.shape, found.nbytes


def _write(part: Laid, segment: Segment | None) -> bytes:
    """Writes a sample to shared memory: what to say of it."""
    (said, offsets, _), key, values = part
    for (_, number, shape, size), value, offset in zip(key[1:], values, offsets):
        if not size:
            continue
        assert segment is not None
        if number >= BYTES:
            segment.memory[offset : offset + size] = value
        else:
            np.ndarray(shape, value.dtype, segment.memory, offset)[...] = value
    return said


def _lay(
    fields: list[tuple[str, int, tuple[int, ...], int]], end: int
) -> tuple[bytes, list[int], int]:
    """What to say of fields that lie one after another from `end` on, where they begin and end."""
    said = [bytes((SAMPLE,)), _TWO.pack(len(fields))]
    offsets: list[int] = []
    for name, number, shape, size in fields:
        letters = name.encode()
        said.append(_FIELD.pack(number, len(shape), len(letters), end, size))
        said.append(struct.pack(f"<{len(shape)}Q", *shape))
        said.append(letters)
        offsets.append(end)
        end += -(-size // 64) * 64
    return b"".join(said), offsets, end


def _said(value: Any) -> str:
    text = repr(value)
    kind = type(value).__name__
    return f"a {kind}" if len(text) > 60 else f"{text} ({kind})"


def _failure(error: BaseException) -> bytes:
    """What the engine is told: a line that says what went wrong, and where in the function."""
    if isinstance(error, Refused):
        text = str(error)
    else:
        line = traceback.format_exception_only(error)[-1].strip()
        # The first place is the one above, which is of no interest.
        where = error.__traceback__.tb_next if error.__traceback__ is not None else None
        lines = "".join(traceback.format_exception(type(error), error, where))
        text = f"{line}\n{lines.rstrip()}"
    data = text.encode(errors="replace")
    if len(data) > _LONGEST_TEXT:
        data = data[:_LONGEST_TEXT].decode(errors="ignore").encode() + "\n…".encode()
    return bytes((FAILED,)) + _FOUR.pack(len(data)) + data


def main() -> None:
    """Serves the engine at the other end of the standard input."""
    try:
        connection = socket.socket(fileno=os.dup(0))
        connection.getpeername()
    except OSError:
        sys.exit(
            "feedline.host is started by the engine, with a socket as its standard input; name it "
            "where functions are allowed, such as: feedline worker --functions \"python -m feedline.host\""
        )
    # Functions that read or print must not meet the engine there.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Host(connection).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    # Whatever threads functions have started end here as well.
    os._exit(0)


if __name__ == "__main__":
    main()
