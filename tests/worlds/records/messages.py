"""Protocol messages drawn by a seed, quickly: with all fields set, with empty fields, or mixed."""

import random
import uuid
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.protocol.schema import OWN_TAGS_START, Field, Form, Kind, fields_of
from tidelog.protocol.wire import NO_UUID

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BITS = {Form.INT8: 8, Form.INT16: 16, Form.UINT16: 16, Form.INT32: 32, Form.INT64: 64}
TEXTS = ("", "a", "topic-1", "größe", "\N{SNOWMAN}" * 50, "x" * 200)
DATA = (b"", b"\0", bytes(range(256)))

# Gets the names of the fields that lead to a number; returns the allowed values, None for any.
Choice = Callable[[tuple[str, ...], Kind[object]], list[int] | None]


def kafkas_fields(kind: "type[DataclassInstance]", version: int) -> list[Field]:
    """Return the fields of a message in a version, without the fields that only tidelog has."""
    return [
        field
        for field in fields_of(kind, version)
        if field.is_there and (field.tag or 0) < OWN_TAGS_START
    ]


def bounds(form: Form) -> tuple[int, int]:
    """Return the range [first, end) of the values of an integer type."""
    if form is Form.UINT16:
        return 0, 1 << BITS[form]
    return -(1 << BITS[form] - 1), 1 << BITS[form] - 1


class Fill(Enum):
    """Selects which fields of a drawn message are set."""

    FULL = "full"
    SHORT = "full, of short values"
    EMPTY = "empty"
    ANY = "any"


class Sampler:
    """Creates messages of a version."""

    def __init__(self, version: int, seed: int, fill: Fill, choice: Choice | None = None) -> None:
        self._version = version
        self._random = random.Random(seed)
        self._fill = fill
        self._choice = choice

    def message(
        self, kind: "type[DataclassInstance]", path: tuple[str, ...] = ()
    ) -> "DataclassInstance":
        there = kafkas_fields(kind, self._version)
        made = {f.name: self._value(f.kind, (*path, f.name)) for f in there}
        if self._fill in (Fill.EMPTY, Fill.ANY):
            # Tagged fields with default values are not encoded.
            made = {
                f.name: made[f.name]
                for f in there
                if f.tag is None or (self._fill is Fill.ANY and self._random.random() < 0.5)
            }
        return kind(**made)

    def _value(self, kind: Kind[object], path: tuple[str, ...]) -> object:
        if self._is_null(kind):
            return None
        if kind.form is Form.ARRAY:
            assert kind.item is not None
            return [self._value(kind.item, path) for _ in range(self._count())]
        if kind.form is Form.STRUCT:
            assert kind.struct is not None
            return self.message(kind.struct, path)
        if kind.form in BITS:
            return self._number(kind, path)
        return self._other(kind.form)

    def _is_null(self, kind: Kind[object]) -> bool:
        if not kind.may_be_null(self._version):
            return False
        return self._fill is Fill.EMPTY or (self._fill is Fill.ANY and self._random.random() < 0.4)

    def _count(self) -> int:
        counts = {Fill.FULL: 2, Fill.SHORT: 1, Fill.EMPTY: 0}
        return counts.get(self._fill, self._random.choice([0, 1, 3]))

    def _number(self, kind: Kind[object], path: tuple[str, ...]) -> int:
        choices = self._choice(path, kind) if self._choice else None
        if choices is None:
            low, end = bounds(kind.form)
            choices = [0, 1, max(-1, low), end - 1, low, self._random.randrange(low, end)]
        return self._random.choice(choices)

    def _other(self, form: Form) -> object:
        if form is Form.BOOLEAN:
            return self._random.random() < 0.5
        if form is Form.FLOAT64:
            return self._random.choice([0.0, 1.5, -2.25e300])
        if form is Form.UUID:
            return self._random.choice([NO_UUID, uuid.UUID(int=self._random.getrandbits(128))])
        short, others = ("", TEXTS) if form is Form.STRING else (b"", DATA)
        return short if self._fill in (Fill.EMPTY, Fill.SHORT) else self._random.choice(others)


def every_version() -> list[tuple[AnyApi, int]]:
    """Return all declared versions of all APIs."""
    return [
        (api, version)
        for api in BY_KEY.values()
        for version in range(api.first_declared, api.last + 1)
    ]


def samples(kind: "type[DataclassInstance]", version: int) -> "list[DataclassInstance]":
    """Return a message with all fields, a message with empty fields, and three mixed messages."""
    fills = [Fill.FULL, Fill.EMPTY, *[Fill.ANY] * 3]
    return [Sampler(version, seed, fill).message(kind) for seed, fill in enumerate(fills)]
