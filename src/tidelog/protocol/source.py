"""What the makers of readers and writers share: lines of Python, and the objects they name.

Names in the lines come from declarations and from counters, values only as objects in the name
space: nothing from outside ever becomes code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Final

from tidelog.protocol.schema import Field, Form, Kind, fields_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FIXED: Final = frozenset(
    (
        Form.INT8,
        Form.INT16,
        Form.UINT16,
        Form.INT32,
        Form.INT64,
        Form.FLOAT64,
        Form.BOOLEAN,
        Form.UUID,
    )
)


def plain_fields(kind: "type[DataclassInstance]", version: int) -> list[Field]:
    """The fields that a version has, without the tagged ones."""
    return [field for field in fields_of(kind, version) if field.is_there and field.tag is None]


def tagged_fields(kind: "type[DataclassInstance]", version: int) -> list[Field]:
    """The tagged fields that a version has, by rising numbers."""
    tagged = [field for field in fields_of(kind, version) if field.is_there]
    return sorted((f for f in tagged if f.tag is not None), key=lambda field: field.tag or 0)


def item_of(kind: Kind[object]) -> Kind[object]:
    """What an array holds."""
    assert kind.item is not None
    return kind.item


def struct_of(kind: Kind[object]) -> "type[DataclassInstance]":
    """The declaration of a struct."""
    assert kind.struct is not None
    return kind.struct


class Source:
    """Python in the making. One owner; `made` once, at the end."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._lines: list[str] = []
        self._names: dict[str, object] = {}
        self._known: dict[int, str] = {}
        self._depth = 0
        self._counter = 0

    def line(self, text: str) -> None:
        """One line."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """A name that nothing else has."""
        self._counter += 1
        return f"{stem}{self._counter}"

    def name(self, value: object, stem: str = "k") -> str:
        """The name by which the lines call an object."""
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = self.fresh(stem)
            # Keeps the object, and with it the id.
            self._names[known] = value
        return known

    def layout(self, letters: str, method: str) -> str:
        """The name of a method of a struct with these letters, the same for the same letters."""
        name = f"{method}_{letters.replace('?', 't')}"
        if name not in self._names:
            self._names[name] = getattr(Struct(f">{letters}"), method)
        return name

    def made(self, name: str, what: str) -> Callable[..., object]:
        """The function `name` that the lines define."""
        code = compile("\n".join(self._lines), f"<{what}>", "exec")
        exec(code, self._names)  # noqa: S102  # lines made above, from declarations alone
        function = self._names[name]
        assert callable(function)
        return function

    def text(self) -> str:
        """The lines, for people."""
        return "\n".join(self._lines)
