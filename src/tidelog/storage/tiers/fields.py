"""Reading JSON of the tier's files: each value of its type, or CorruptFile that names it."""

import json
from dataclasses import dataclass
from typing import Self

from tidelog.errors import CorruptFile
from tidelog.types import INT64_MAX, INT64_MIN


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a JSON object; `what` names it in errors."""

    content: dict[str, object]
    what: str

    @classmethod
    def of(cls, value: object, what: str) -> Self:
        """The fields of `value`; raises CorruptFile where it is no object."""
        if not isinstance(value, dict):
            raise CorruptFile(f"{what} is {type(value).__name__}, a JSON object expected")
        return cls(value, what)

    @property
    def names(self) -> list[str]:
        """The fields' names."""
        return list(self.content)

    def value(self, name: str) -> object:
        """Any value; None where there is none."""
        return self.content.get(name)

    def integer(self, name: str) -> int:
        """A whole number of 64 bits."""
        found = self.maybe_integer(name)
        if found is None:
            raise self._problem(name, "a whole number")
        return found

    def maybe_integer(self, name: str) -> int | None:
        """The same, None where it is null or missing."""
        found = self.content.get(name)
        if found is None:
            return None
        if type(found) is not int or not INT64_MIN <= found <= INT64_MAX:
            raise self._problem(name, "a whole number")
        return found

    def text(self, name: str) -> str:
        """A text."""
        found = self.content.get(name)
        if not isinstance(found, str):
            raise self._problem(name, "a text")
        return found

    def maybe_text(self, name: str) -> str:
        """A text, empty where it is null or missing."""
        return "" if self.content.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """True or false."""
        found = self.content.get(name)
        if not isinstance(found, bool):
            raise self._problem(name, "true or false")
        return found

    def items(self, name: str) -> list[object]:
        """A list."""
        found = self.content.get(name)
        if not isinstance(found, list):
            raise self._problem(name, "a list")
        return found

    def mapping(self, name: str) -> "Fields":
        """An object inside."""
        return Fields.of(self.content.get(name), f"`{name}` of {self.what}")

    def _problem(self, name: str, expected: str) -> CorruptFile:
        found = str(self.content.get(name))[:80]
        return CorruptFile(f"{self.what}: `{name}` is {found}, {expected} expected")


def read_json(data: bytes, what: str) -> Fields:
    """The object in a JSON text; raises CorruptFile."""
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what} is not JSON: {error}") from error
    return Fields.of(found, what)
