"""Sets of characters in regular expressions, as ranges of code points.

Source: RE2's syntax page for the classes; Unicode's CaseFolding.txt (simple folding).
"""

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
# Ascending and apart; both ends of each are included.
Ranges: TypeAlias = tuple[Range, ...]

CODE_POINT_MAX: Final = 0x10FFFF
EVERYTHING: Final[Ranges] = ((0, CODE_POINT_MAX),)
NEW_LINE: Final = 10
WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))

_DIGIT: Final[Ranges] = ((48, 57),)
PERL_CLASSES: Final[Mapping[str, Ranges]] = {
    "d": _DIGIT,
    "s": ((9, 10), (12, 13), (32, 32)),
    "w": WORD,
}
ASCII_CLASSES: Final[Mapping[str, Ranges]] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}

# Where Unicode has letters with two cases; looking at all of it takes a hundred times as long.
CASED_BLOCKS: Final[Ranges] = (
    (0x0000, 0x2DFF),
    (0xA640, 0xABFF),
    (0xFF00, 0xFF5F),
    (0x10400, 0x10CFF),
    (0x11800, 0x118FF),
    (0x16E00, 0x16EFF),
    (0x1E800, 0x1E9FF),
)


def union(ranges: Iterable[Range]) -> Ranges:
    """Ranges in any order, overlapping or not, as one set."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def opposite(ranges: Ranges) -> Ranges:
    """All that is not in these."""
    found, start = [], 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= CODE_POINT_MAX:
        found.append((start, CODE_POINT_MAX))
    return tuple(found)


def holds(ranges: Ranges, code_point: int) -> bool:
    """Whether a code point is in these."""
    slot = bisect_right(ranges, (code_point, CODE_POINT_MAX)) - 1
    return slot >= 0 and code_point <= ranges[slot][1]


@functools.lru_cache(maxsize=256)  # a hostile expression may name all of Unicode often
def fold(ranges: Ranges) -> Ranges:
    """These, and whatever differs from one of them by its case alone."""
    cased, forms = _cases()
    more: list[Range] = []
    for low, high in ranges:
        for code_point in cased[bisect_left(cased, low) : bisect_right(cased, high)]:
            more += [(form, form) for form in forms[code_point] if not low <= form <= high]
    return union([*ranges, *more]) if more else ranges


@functools.cache
def _cases() -> tuple[list[int], Mapping[int, tuple[int, ...]]]:
    """Code points that have other cases, ascending, and all cases of each."""
    alike: dict[str, list[int]] = {}
    for low, high in CASED_BLOCKS:
        for code_point in range(low, high + 1):
            alike.setdefault(simple_fold(chr(code_point)), []).append(code_point)
    forms = {one: tuple(same) for same in alike.values() if len(same) > 1 for one in same}
    return sorted(forms), forms


def simple_fold(character: str) -> str:
    """What characters that differ by case alone have in common: one character."""
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character
