"""What a regular expression is made of, once its syntax is gone."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidelog.server.regexes.characters import Ranges


class Edge(Enum):
    """A condition on a place between characters."""

    START = "start"
    END = "end"
    LINE_START = "line start"
    LINE_END = "line end"
    WORD = "word"
    NO_WORD = "no word"


@dataclass(frozen=True, slots=True)
class Chars:
    """One of these characters."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class At:
    """A condition."""

    edge: Edge


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times; `most` None for any number."""

    part: "Node"
    least: int
    most: int | None


Node: TypeAlias = "Chars | At | Sequence | Choice | Repeat"
