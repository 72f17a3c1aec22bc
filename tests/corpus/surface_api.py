"""Pages `api`, `errors` and `results` of the surface: public names, and the classes of results."""

import dataclasses
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import ModuleType
from typing import Final

from tests.corpus.book import Entry
from tests.corpus.signatures import (
    class_lines,
    members,
    results_of,
    signature_lines,
    types_in,
)

import tidelog
import tidelog.spark

MODULES: Final = (tidelog, tidelog.spark)
# Members for internal use: the classes that they return are not part of the surface.
INSIDE: Final = {
    "Directory": ("log", "log_dir", "partition", "source"),
    "RemoteDirectory": ("cluster", "source"),
    "Broker": ("call",),
    "Diff": ("source",),
    "Table": ("source",),
    "Scan": ("source", "requested_range"),
}
# Public classes without a public constructor: only open, connect and connect_async create
# instances.
MADE_BY_CALLS: Final = ("Directory", "RemoteDirectory", "AsyncRemoteDirectory")


def pages() -> Iterator[Entry]:
    """Yield all three pages."""
    for module in MODULES:
        yield Entry(f"surface/api/{module.__name__}", "\n".join(sorted(module.__all__)))
        yield from _named(module)
    yield from _results()


def _named(module: ModuleType) -> Iterator[Entry]:
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, type) and issubclass(found, BaseException):
            yield Entry(f"surface/errors/{name}", "\n".join(_error_lines(found)))
            continue
        lines = _class(found) if isinstance(found, type) else signature_lines(name, found)
        yield Entry(f"surface/api/{module.__name__}.{name}", "\n".join(lines))


def _class(kind: type, *, is_made: bool = True) -> list[str]:
    is_made = is_made and kind.__name__ not in MADE_BY_CALLS
    return class_lines(kind, is_made=is_made, left_out=INSIDE.get(kind.__name__, ()))


def _error_lines(kind: type[BaseException]) -> list[str]:
    """Return a line with an error's class and its bases, then the lines of the class."""
    tree = " < ".join(base.__name__ for base in kind.__mro__ if issubclass(base, BaseException))
    return [tree, *class_lines(kind)]


def _results() -> Iterator[Entry]:
    """Yield the classes that public calls return but that have no public name."""
    public = {getattr(module, name) for module in MODULES for name in module.__all__}
    taken: dict[str, type] = {}
    for kind, root in _handed_out():
        if kind in public:
            continue
        name = kind.__name__
        if taken.setdefault(name, kind) is not kind:
            name = f"{name}@{root}"
        yield Entry(f"surface/results/{name}", "\n".join(_class(kind, is_made=False)))


def _handed_out() -> Iterator[tuple[type, str]]:
    """Yield each class reachable from public names, with the first name that leads to it."""
    names = [(name, getattr(module, name)) for module in MODULES for name in module.__all__]
    waiting = deque[tuple[type, str]]()
    for name, found in sorted(names, key=itemgetter(0)):
        kinds = [found] if isinstance(found, type) else list(results_of(found))
        waiting.extend((kind, name) for kind in kinds)
    seen = set[type]()
    while waiting:
        kind, root = waiting.popleft()
        if kind in seen:
            continue
        seen.add(kind)
        yield kind, root
        waiting.extend((one, root) for one in _next(kind))


def _next(kind: type) -> Iterator[type]:
    left_out = INSIDE.get(kind.__name__, ())
    for name, member in members(kind):
        function = _function(member)
        if function is not None and not name.startswith("_") and name not in left_out:
            yield from results_of(function)
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            if field.name not in left_out:
                yield from types_in(field.type, sys.modules[kind.__module__])


def _function(member: object) -> Callable[..., object] | None:
    found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return found if inspect.isfunction(found) else None
