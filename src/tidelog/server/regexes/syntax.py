r"""The syntax of regular expressions from outside: what RE2 allows, as a tree.

Case folding, classes and negation are settled here: a part of the tree is a set of characters or a
condition on a place. No back references and no looking around, as in RE2. Sizes are bounded:
repetitions to 1,000, groups in groups to 100, the whole to 4,096 characters.

Source: RE2's syntax page, as RE2J 1.8 reads it with its ordinary flags.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tidelog.server.regexes.characters import (
    ASCII_CLASSES,
    CODE_POINT_MAX,
    EVERYTHING,
    NEW_LINE,
    PERL_CLASSES,
    Range,
    Ranges,
    fold,
    opposite,
    union,
)
from tidelog.server.regexes.tree import At, Chars, Choice, Edge, Node, Repeat, Sequence

REPEAT_MAX: Final = 1000
NESTING_MAX: Final = 100
LENGTH_MAX: Final = 4096
# So many characters may be looked up for other cases; of a set at most about so many have any.
FOLDED_MAX: Final = 60_000
CASED_MOST: Final = 3000
_CONTROL: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
# `{2}`, `{2,}` or `{2,3}`; anything else in braces is a literal, also with noughts in front.
_COUNTED: Final = re.compile(r"\{(0|[1-9][0-9]*)(,?)(0|[1-9][0-9]*|)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]+")


class InvalidRegex(ValueError):
    """An expression breaks a rule, or is larger than a bound."""


class ClassFinder(Protocol):
    r"""What `\\p{..}` means."""

    def __call__(self, name: str, *, ignores_case: bool) -> Ranges | None:
        """The characters of a class; None for a name that is not known."""
        ...


def find_no_class(name: str, *, ignores_case: bool) -> Ranges | None:  # noqa: ARG001 - none is known
    """A finder that knows none."""
    return None


_EDGES: Final = {"A": Edge.START, "z": Edge.END, "b": Edge.WORD, "B": Edge.NO_WORD}


@dataclass(frozen=True, slots=True)
class _Flags:
    ignores_case: bool = False
    has_lines: bool = False
    dot_is_all: bool = False


_NO_FLAGS: Final = _Flags()
# `U` swaps greedy and lazy, which is the same for a text that has to match as a whole.
_FLAG_NAMES: Final = {"i": "ignores_case", "m": "has_lines", "s": "dot_is_all", "U": None}


def parse_regex(text: str, find_class: ClassFinder = find_no_class) -> Node:
    """The tree of an expression.

    Raises:
        InvalidRegex: It breaks a rule of RE2's, or a bound.
    """
    if len(text) > LENGTH_MAX:
        raise InvalidRegex(f"longer than {LENGTH_MAX} characters")
    parser = _Parser(text, find_class)
    node = parser.choice(_NO_FLAGS, 0)
    if parser.left:
        raise InvalidRegex("unexpected )")
    return node


class _Parser:
    def __init__(self, text: str, find_class: ClassFinder) -> None:
        self._text = text
        self._find_class = find_class
        self._at = 0
        self._names: set[str] = set()
        # Flags that `(?i)` changes hold until the end of the group around it.
        self._flags = _NO_FLAGS
        # Repetitions of repetitions, for what is a tree without any group.
        self._repeated_again = 0
        self._folded = 0

    @property
    def left(self) -> str:
        return self._text[self._at :]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _starts(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._starts(text):
            self._at += len(text)
            return True
        return False

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise InvalidRegex(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, mark: str, missing: str) -> str:
        end = self._text.find(mark, self._at)
        if end < 0:
            raise InvalidRegex(missing)
        found, self._at = self._text[self._at : end], end + len(mark)
        return found

    # -- structure ---------------------------------------------------------------------------

    def choice(self, flags: _Flags, depth: int) -> Node:
        if depth > NESTING_MAX:
            raise InvalidRegex(f"nested deeper than {NESTING_MAX}")
        outer, self._flags = self._flags, flags
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        self._flags = outer
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        repetition_at: int | None = None
        while self._peek() not in {"", "|", ")"}:
            at = self._at
            bounds = self._bounds()
            if bounds is None:
                # RE2J takes a brace that counts nothing for a repetition, beside the literal.
                repetition_at = at if self._starts("{") else None
                parts += self._quoted() if self._take("\\Q") else self._atom(depth)
                continue
            self._take("?")  # a lazy one: for a whole text it makes no difference
            if repetition_at is not None:
                told = self._text[repetition_at : self._at]
                raise InvalidRegex(f"invalid nested repetition operator: `{told}`")
            if not parts:
                told = self._text[at : self._at]
                raise InvalidRegex(f"missing argument to repetition operator: `{told}`")
            parts[-1] = self._repeated(parts[-1], bounds)
            repetition_at = at
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, part: Node, bounds: tuple[int, int | None]) -> Node:
        if isinstance(part, Repeat):
            self._repeated_again += 1
            if self._repeated_again > NESTING_MAX:
                raise InvalidRegex(f"repetitions repeated more often than {NESTING_MAX} times")
        return Repeat(part, *bounds)

    def _quoted(self) -> list[Node]:
        end = self._text.find("\\E", self._at)
        stop = len(self._text) if end < 0 else end
        found: list[Node] = [self._literal(ord(each)) for each in self._text[self._at : stop]]
        self._at = stop if end < 0 else end + 2
        return found

    def _bounds(self) -> tuple[int, int | None] | None:
        sign = _SIGNS.get(self._peek())
        if sign is not None:
            self._at += 1
            return sign
        found = _COUNTED.match(self._text, self._at)
        if found is None or (found[3] and not found[2]):
            return None
        self._at = found.end()
        least = _count(found[1])
        most = _count(found[3] or found[1]) if found[3] or not found[2] else None
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            raise InvalidRegex(f"invalid repeat count: `{found[0]}`")
        return least, most

    # -- atoms -------------------------------------------------------------------------------

    def _atom(self, depth: int) -> list[Node]:
        """What one repetition would repeat; nothing for `(?i)`."""
        letter = self._next("")
        return self._group(depth) if letter == "(" else [self._single(letter)]

    def _single(self, letter: str) -> Node:
        flags = self._flags
        match letter:
            case "[":
                return Chars(self._class())
            case "\\":
                return self._escape()
            case ".":
                return Chars(EVERYTHING if flags.dot_is_all else opposite(_one(NEW_LINE)))
            case "^":
                return At(Edge.LINE_START if flags.has_lines else Edge.START)
            case "$":
                return At(Edge.LINE_END if flags.has_lines else Edge.END)
        return self._literal(ord(letter))

    def _literal(self, code_point: int) -> Chars:
        return Chars(self._with_cases(_one(code_point)))

    def _with_cases(self, ranges: Ranges) -> Ranges:
        if not self._flags.ignores_case:
            return ranges
        self._folded += min(sum(high - low + 1 for low, high in ranges), CASED_MOST)
        if self._folded > FOLDED_MAX:
            raise InvalidRegex(f"more than {FOLDED_MAX} characters in all their cases")
        return fold(ranges)

    def _group(self, depth: int) -> list[Node]:
        flags = self._flags
        if self._take("?P<") or self._take("?<"):
            self._name()
        elif self._take("?"):
            flags, is_open = self._group_flags()
            if not is_open:
                self._flags = flags
                return []
        node = self.choice(flags, depth + 1)
        if not self._take(")"):
            raise InvalidRegex(f"missing closing ): `{self._text}`")
        return [node]

    def _name(self) -> None:
        name = self._until(">", f"invalid named capture: `{self.left}`")
        if not _NAME.fullmatch(name):
            raise InvalidRegex(f"invalid named capture: `{name}`")
        if name in self._names:
            raise InvalidRegex(f"duplicate capture group name: `{name}`")
        self._names.add(name)

    def _group_flags(self) -> tuple[_Flags, bool]:
        """The flags of `(?i-s:` or `(?i)`, and whether a group begins with them."""
        start, flags, is_on, seen = self._at, self._flags, True, False
        while True:
            letter = self._next("missing closing )")
            if letter in _FLAG_NAMES:
                seen = True
                name = _FLAG_NAMES[letter]
                flags = replace(flags, **{name: is_on}) if name else flags
            elif letter == "-" and is_on:
                is_on, seen = False, False
            elif letter in ":)" and (is_on or seen):
                return flags, letter == ":"
            else:
                told = self._text[start : self._at]
                raise InvalidRegex(f"invalid or unsupported Perl syntax: `(?{told}`")

    # -- characters --------------------------------------------------------------------------

    def _escape(self) -> Node:
        """What is behind a backslash, outside of brackets."""
        edge = _EDGES.get(self._peek())
        if edge is not None:
            self._at += 1
            return At(edge)
        known = self._escaped_class()
        return self._literal(self._escaped()) if known is None else Chars(known)

    def _escaped_class(self) -> Ranges | None:
        """The class behind a backslash, None where there is none."""
        kind = self._peek()
        if kind in {"p", "P"}:
            self._at += 1
            return self._unicode_class(kind)
        ranges = PERL_CLASSES.get(kind.lower())
        if ranges is None:
            return None
        self._at += 1
        found = self._with_cases(ranges)
        return found if kind.islower() else opposite(found)

    def _unicode_class(self, kind: str) -> Ranges:
        name = self._next("invalid character class range: `\\p`")
        if name == "{":
            name = self._until("}", f"invalid character class range: `\\{kind}{{`")
        is_negated = (kind == "P") is not name.startswith("^")
        ignores_case = self._flags.ignores_case
        found = self._find_class(name.removeprefix("^"), ignores_case=ignores_case)
        if found is None:
            raise InvalidRegex(f"invalid character class range: `\\{kind}{{{name}}}`")
        return opposite(found) if is_negated else found

    def _escaped(self) -> int:
        """The character behind a backslash."""
        letter = self._next("trailing backslash at end of expression")
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter == "x":
            return self._hexadecimal()
        if letter in "01234567":
            return self._octal(letter)
        if not (letter.isascii() and letter.isalnum()):
            return ord(letter)
        raise InvalidRegex(f"invalid escape sequence: `\\{letter}`")

    def _octal(self, first: str) -> int:
        digits = first
        while len(digits) < 3 and self._peek() in tuple("01234567"):
            digits += self._next("")
        if first != "0" and len(digits) == 1:
            raise InvalidRegex(f"invalid escape sequence: `\\{first}`")  # a back reference
        return int(digits, 8)

    def _hexadecimal(self) -> int:
        if self._take("{"):
            digits = self._until("}", "invalid escape sequence: `\\x{`")
        else:
            digits = self._text[self._at : self._at + 2].ljust(2)
            self._at += 2
        number = int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else CODE_POINT_MAX + 1
        if number > CODE_POINT_MAX:
            raise InvalidRegex(f"invalid escape sequence: `\\x{{{digits}}}`")
        return number

    # -- brackets ----------------------------------------------------------------------------

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        plain, settled = list[Range](), list[Range]()
        is_first = True
        while is_first or not self._take("]"):
            known = self._named_class()
            if known is None:
                plain.append(self._class_range())
            else:
                settled += known
            is_first = False
        found = union([*self._with_cases(union(plain)), *settled])
        return opposite(found) if is_negated else found

    def _named_class(self) -> Ranges | None:
        """`[:alpha:]`, or a class behind a backslash; None where there is neither."""
        if self._starts("[:") and self._text.find(":]", self._at) >= 0:
            self._at += 2
            return self._ascii_class(self._until(":]", ""))
        if not self._take("\\"):
            return None
        found = self._escaped_class()
        if found is None:
            self._at -= 1
        return found

    def _ascii_class(self, name: str) -> Ranges:
        ranges = ASCII_CLASSES.get(name.removeprefix("^"))
        if ranges is None:
            raise InvalidRegex(f"invalid character class range: `[:{name}:]`")
        found = self._with_cases(ranges)
        return opposite(found) if name.startswith("^") else found

    def _class_range(self) -> Range:
        low = high = self._class_character()
        if self._starts("-") and not self._starts("-]"):
            self._at += 1
            high = self._class_character()
            if high < low:
                raise InvalidRegex(f"invalid character class range: `{chr(low)}-{chr(high)}`")
        return low, high

    def _class_character(self) -> int:
        letter = self._next(f"missing closing ]: `{self._text}`")
        return self._escaped() if letter == "\\" else ord(letter)


def _one(code_point: int) -> Ranges:
    return ((code_point, code_point),)


def _count(digits: str) -> int:
    """A number of repetitions; some too large one for one of many digits."""
    return int(digits) if len(digits) <= len(str(REPEAT_MAX)) else REPEAT_MAX + 1
