"""Functions in a pipeline: what they are called, and how they travel.

A plan names a function by module and qualified name and by a hash of what it does, so that the
same function has the same name in every process. How it travels is another matter: pickled, as a
blob, which only a host ever unpickles (see `host.py`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import _core

Field = str | tuple[Any, ...]


def described(
    step: str, function: Callable[..., Any], version: str | None
) -> tuple[_core.Blob, dict[str, Any]]:
    """The blob in which a function travels, and what a plan says of it."""
    if not callable(function):
        raise _core.PipelineError(f"{step}: {function!r} is no function")
    name = _name(function)
    random = _takes_random(step, name, function)
    said: dict[str, Any] = {"function": name}
    naming = _Naming()
    try:
        source = naming.name(function)
    except Exception as error:
        if version is None:
            raise _core.PipelineError(
                f"{step}: what {name} refers to cannot be told from other things by its content "
                f"({type(error).__name__}: {error}); give version=\"1\", and another whenever the "
                "function changes"
            ) from error
    if version is None:
        said["source"] = source
    else:
        said["version"] = str(version)
    blob = _core.Blob.bytes(_pickled(step, name, function, naming.modules))
    said["code"] = blob.hash
    if random:
        said["random"] = True
    return blob, said


def outputs(given: Mapping[str, Field]) -> list[dict[str, Any]]:
    """The fields that a user says a function gives, as the plan has them."""
    if not isinstance(given, Mapping):
        raise _core.PipelineError(
            "map: output is a dict such as {\"image\": (\"uint8\", (224, 224, 3))}"
        )
    fields = []
    for name, field in given.items():
        parts = field if isinstance(field, tuple) else (field,)
        if not 1 <= len(parts) <= 3:
            raise _core.PipelineError(
                f"map: output {name}: give (dtype, shape), or (dtype, shape, \"HWC\") for an image"
            )
        dtype = parts[0]
        if dtype is str or dtype is bytes:
            dtype = "text" if dtype is str else "bytes"
        elif not isinstance(dtype, str):
            dtype = np.dtype(dtype).name
        shape = parts[1] if len(parts) > 1 else ()
        shape = (shape,) if isinstance(shape, int) or shape is None else shape
        sides = [None if side is None else int(side) for side in shape]
        row: dict[str, Any] = {"name": name, "dtype": dtype, "shape": sides}
        if len(parts) > 2:
            row["layout"] = parts[2]
        fields.append(row)
    return fields


def command() -> tuple[list[str], list[tuple[str, str]]]:
    """How hosts are started here, and what is added to their environment: they find the modules
    that this process finds."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return [sys.executable, "-P", "-m", "feedline.host"], [("PYTHONPATH", paths)]


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or "builtins"
    return f"{module}.{named.__qualname__}"


def _takes_random(step: str, name: str, function: Callable[..., Any]) -> bool:
    """Whether a function has a second parameter, for random numbers."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = [p for p in places if p.default is p.empty]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(needed) > 2 or named or not (places or rest):
        raise _core.PipelineError(
            f"{step}: {name}{inspect.signature(function)} is called with a sample, and with random "
            "numbers if it has a second parameter"
        )
    return len(needed) == 2 or len(places) > 1 and places[1].name == "rng"


def _pickled(
    step: str, name: str, function: Callable[..., Any], modules: set[str]
) -> bytes:
    import cloudpickle

    try:
        with _by_value(modules):
            return cloudpickle.dumps(function)
    except Exception as error:
        raise _core.PipelineError(
            f"{step}: {name} cannot be handed to another process ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def _by_value(modules: set[str]) -> Iterator[None]:
    """Modules of the user's own travel with the function: where it runs they may be missing."""
    import cloudpickle

    registered = []
    known = cloudpickle.list_registry_pickle_by_value()
    for name in modules:
        module = sys.modules.get(name)
        if module is not None and name not in known and name != "__main__":
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.add(os.path.realpath(os.path.dirname(__file__)))
    return tuple(path + os.sep for path in found)


def _is_own(thing: Any) -> bool:
    """Whether a function or a class is the user's own, and not of something that is installed."""
    module = sys.modules.get(thing.__module__ or "")
    found: Any = module
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    if module is None or found is not thing:
        # Made on the way, or in a notebook: nobody else has it.
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__.partition(".")[0] not in sys.stdlib_module_names
    return not os.path.realpath(file).startswith(_installed())


class _Naming:
    """Hashes what a function does: its source, and whatever it refers to, by content.

    Addresses, which things are shared, orders of sets, line numbers and names of files are left
    out: they differ from one process to the next.
    """

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        self._alive: list[Any] = []
        self.modules: set[str] = set()

    def name(self, function: Callable[..., Any]) -> str:
        """The hash of a function."""
        return self._of(function).hex()

    def _of(self, value: Any) -> bytes:
        if type(value) in _SIMPLE:
            return _hash(type(value).__name__, repr(value).encode(errors="surrogatepass"))
        known = self._done.get(id(value))
        if known is not None:
            return known
        if id(value) in self._open:
            return _hash("within", str(len(self._open) - self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        # What was made on the way must not be freed: another thing could get its address.
        self._alive.append(value)
        made = _hash(*self._parts(value))
        del self._open[id(value)]
        self._done[id(value)] = made
        return made

    def _parts(self, value: Any) -> Iterator[str | bytes]:
        if isinstance(value, types.CodeType):
            yield "code"
            yield value.co_code
            yield self._of((value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars))
            yield self._of(value.co_consts)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.ModuleType):
            yield f"module {value.__name__}"
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield f"array {value.dtype.str} {value.shape}"
            yield np.ascontiguousarray(value).tobytes()
        elif type(value) in (tuple, list):
            yield type(value).__name__
            for item in value:
                yield self._of(item)
        elif type(value) is dict:
            yield "dict"
            for key, item in value.items():
                yield self._of(key)
                yield self._of(item)
        elif type(value) in (set, frozenset):
            yield "set"
            yield from sorted(self._of(item) for item in value)
        elif isinstance(value, types.MethodType):
            yield f"method {value.__func__.__qualname__}"
            yield self._of(value.__func__)
            yield self._of(value.__self__)
        elif isinstance(value, types.CellType):
            yield "cell"
            try:
                yield self._of(value.cell_contents)
            except ValueError:
                yield "empty"
        else:
            yield from self._reduced(value)

    def _function(self, function: types.FunctionType) -> Iterator[str | bytes]:
        module = function.__module__
        yield f"function {module}.{function.__qualname__}"
        if not _is_own(function):
            return
        self.modules.add(module or "")
        source = _source(function)
        yield self._of(function.__code__) if source is None else source
        yield self._of(function.__defaults__)
        yield self._of(function.__kwdefaults__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            yield f"free {name}"
            yield self._of(cell)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield f"global {name}"
                yield self._of(function.__globals__[name])

    def _class(self, kind: type) -> Iterator[str | bytes]:
        yield f"class {kind.__module__}.{kind.__qualname__}"
        if not _is_own(kind):
            return
        self.modules.add(kind.__module__)
        for base in kind.__bases__:
            yield self._of(base)
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if isinstance(value, property):
                value = (value.fget, value.fset)
            if isinstance(value, (types.FunctionType, tuple)) or not name.startswith("__"):
                yield f"member {name}"
                yield self._of(value)

    def _reduced(self, value: Any) -> Iterator[str | bytes]:
        """Anything else by what pickle would make it of again."""
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, str):
            yield f"named {getattr(value, '__module__', '')}.{reduced}"
            return
        yield "object"
        yield self._of(type(value))
        for part in reduced:
            if hasattr(part, "__next__"):
                part = list(part)
            yield self._of(part)


_SIMPLE = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis)))


def _hash(*parts: str | bytes) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        made.update(len(data).to_bytes(8, "little"))
        made.update(data)
    return made.digest()


def _source(function: types.FunctionType) -> str | None:
    """The function's source without comments and spacing; None where it does not stand by itself, as
    that of a lambda."""
    if function.__name__ == "<lambda>":
        return None
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return ast.dump(parsed)


def _names(code: types.CodeType) -> set[str]:
    """The names that a function looks up, also in functions within it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


__all__: Sequence[str] = ("command", "described", "outputs")
