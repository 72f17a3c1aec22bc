"""Which texts a regular expression means, in a time that grows with text and expression alone.

The tree becomes a machine whose states are followed all at once, so nothing is ever tried twice.
Characters that no part of the expression tells apart are one kind, and sets of states that were
met are remembered by kind. A budget bounds what one expression may take in its life.

Source: Thompson's construction; KIP-848 and KIP-1152 (the whole text has to match).
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from tidelog.server.regexes.characters import NEW_LINE, WORD, Ranges, holds
from tidelog.server.regexes.syntax import (
    ClassFinder,
    InvalidRegex,
    find_no_class,
    parse_regex,
)
from tidelog.server.regexes.tree import At, Chars, Choice, Edge, Node, Repeat, Sequence

# Without the last one.
STATES_MAX: Final = 1000
# Visits of the tree: repetitions of nothing make no states.
VISITS_MAX: Final = 20_000
# Steps from state to state in one look at all topics: some seconds at most.
BUDGET: Final = 10_000_000
# Sets of states that are remembered.
SETS_KEPT: Final = 2000

# What a condition on a place asks of the characters beside it; nothing is beyond the ends.
_NOTHING, _NEW_LINE, _WORD, _OTHER = range(4)
# Kinds of characters are counted from 0 on.
_END: Final = -1


class RegexTooCostly(Exception):
    """Looking at all texts would take too long."""


class Regex:
    """A compiled expression. One owner."""

    def __init__(
        self, text: str, *, find_class: ClassFinder = find_no_class, budget: int = BUDGET
    ) -> None:
        r"""Compile.

        Args:
            text: The expression.
            find_class: What `\\p{..}` means; none is known where it is left out.
            budget: Steps from state to state in its whole life; what is remembered takes none.

        Raises:
            InvalidRegex: It breaks a rule, or is too large.
        """
        # Of each state: characters that lead on, a condition, or neither; and where they lead.
        self._chars: list[Ranges | None] = []
        self._edges: list[Edge | None] = []
        self._next: list[tuple[int, ...]] = []
        self._visits = 0
        self._end = self._state(None, None)
        self._start = self._build(parse_regex(text, find_class), self._end)
        # Each kind of characters begins at its cut, and what begins there speaks for all of it.
        self._cuts = _cuts(self._chars)
        self._asked = [_ask(code_point) for code_point in self._cuts] + [_NOTHING]
        self._moves: dict[tuple[frozenset[int], int, int], frozenset[int]] = {}
        self._left = budget

    def find(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match as a whole.

        Raises:
            RegexTooCostly: The budget is used up.
        """
        return frozenset(name for name in names if self.matches(name))

    def matches(self, text: str) -> bool:
        """Whether a whole text matches.

        Raises:
            RegexTooCostly: The budget is used up.
        """
        states, before = frozenset((self._start,)), _END
        for character in text:
            kind = bisect_right(self._cuts, ord(character)) - 1
            states = self._move(states, before, kind)
            if not states:
                return False
            before = kind
        return bool(self._move(states, before, _END))

    # -- building ----------------------------------------------------------------------------

    def _state(self, chars: Ranges | None, edge: Edge | None, *following: int) -> int:
        if len(self._next) > STATES_MAX:
            raise InvalidRegex("expression too large")
        self._chars.append(chars)
        self._edges.append(edge)
        self._next.append(following)
        return len(self._next) - 1

    def _build(self, node: Node, following: int) -> int:
        """The state at which a node begins, given the one behind it."""
        self._visits += 1
        if self._visits > VISITS_MAX:
            raise InvalidRegex("expression too large")
        match node:
            case Chars(ranges):
                return self._state(ranges, None, following)
            case At(edge):
                return self._state(None, edge, following)
            case Sequence(parts):
                for part in reversed(parts):
                    following = self._build(part, following)
                return following
            case Choice(parts):
                return self._state(None, None, *[self._build(part, following) for part in parts])
            case Repeat():
                return self._repeat(node, following)

    def _repeat(self, node: Repeat, following: int) -> int:
        end = following
        if node.most is None:
            loop = self._state(None, None, end)
            self._next[loop] = (self._build(node.part, loop), end)
            following = loop
        for _ in range((node.most or node.least) - node.least):
            start = self._build(node.part, following)
            if start == following:
                break  # nothing again and again is nothing
            following = self._state(None, None, start, end)
        for _ in range(node.least):
            start = self._build(node.part, following)
            if start == following:
                break
            following = start
        return following

    # -- following ---------------------------------------------------------------------------

    def _move(self, states: frozenset[int], before: int, kind: int) -> frozenset[int]:
        """Where a kind of characters leads; the end leads to the last state alone."""
        key = (states, self._asked[before], kind)
        known = self._moves.get(key)
        if known is not None:
            return known
        reached = self._closure(states, self._asked[before], self._asked[kind])
        if kind == _END:
            found = frozenset(reached & {self._end})
        else:
            found = self._taken(reached, self._cuts[kind])
        if len(self._moves) >= SETS_KEPT:
            self._moves.clear()
        self._moves[key] = found
        return found

    def _taken(self, states: set[int], code_point: int) -> frozenset[int]:
        found = set[int]()
        for state in states:
            ranges = self._chars[state]
            if ranges is not None and holds(ranges, code_point):
                found.update(self._next[state])
        return frozenset(found)

    def _closure(self, states: frozenset[int], before: int, after: int) -> set[int]:
        """All states that these lead to without a character, at a place between two."""
        found, waiting = set(states), list(states)
        while waiting:
            state = waiting.pop()
            self._spend()
            if self._chars[state] is not None or not _is_met(self._edges[state], before, after):
                continue
            for following in self._next[state]:
                if following not in found:
                    found.add(following)
                    waiting.append(following)
        return found

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RegexTooCostly("too many steps")


def _cuts(chars: Iterable[Ranges | None]) -> list[int]:
    """Where sets of characters begin and end, and those that conditions ask for; ascending."""
    told = {*(ranges for ranges in chars if ranges is not None), WORD, ((NEW_LINE, NEW_LINE),)}
    ends = (end for ranges in told for low, high in ranges for end in (low, high + 1))
    return sorted({0, *ends})


def _ask(code_point: int) -> int:
    if code_point == NEW_LINE:
        return _NEW_LINE
    return _WORD if holds(WORD, code_point) else _OTHER


def _is_met(edge: Edge | None, before: int, after: int) -> bool:
    """Whether a condition is met between two characters."""
    match edge:
        case None:
            return True
        case Edge.START:
            return before == _NOTHING
        case Edge.END:
            return after == _NOTHING
        case Edge.LINE_START:
            return before in (_NOTHING, _NEW_LINE)
        case Edge.LINE_END:
            return after in (_NOTHING, _NEW_LINE)
    is_word_edge = (before == _WORD) is not (after == _WORD)
    return is_word_edge is (edge is Edge.WORD)
