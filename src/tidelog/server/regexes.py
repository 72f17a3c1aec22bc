"""Regular expressions of clients, in RE2's syntax, matched in linear time.

Python's own engine can take exponential time on a short text, so RE2 (google-re2) is used. The
library is loaded for the first expression. docs/decisions/0027-regular-expressions.md explains the
choice.

Source: KIP-848 and KIP-1152 (an expression has to match a whole text); Kafka 4.3's RE2J.
"""

from collections.abc import Iterable
from typing import Final, Protocol, cast

from tidelog.errors import MissingDependency

LENGTH_MAX: Final = 4096
# Maximum number of Unicode classes in an expression. RE2 processes hundreds of ranges for each
# class, and a heartbeat waits for this work.
UNICODE_CLASSES_MAX: Final = 200
# Maximum size of a compiled expression with its cached states, in bytes. RE2 caches 128
# expressions.
MEMORY_MAX: Final = 1 << 20
# Maximum number of steps for matching all names without cached states. RE2 runs this number of
# steps in a few seconds at most.
STEPS_MAX: Final = 2_000_000_000


class _Compiled(Protocol):
    """The part of RE2's compiled expression that this module uses. RE2 has no type hints."""

    programsize: int

    def fullmatch(self, text: bytes) -> object | None: ...


class UnusableRegex(ValueError):
    """An expression is invalid, too large, or would take too long."""


def require_usable(text: str) -> None:
    """Ensure that an expression is usable.

    Raises:
        UnusableRegex: The expression is invalid in RE2, or too large.
        MissingDependency: google-re2 is not installed.
    """
    _compile(text)


def find_matches(text: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an expression matches from beginning to end.

    Any thread may call this.

    Raises:
        UnusableRegex: The expression is invalid in RE2 or too large, or matching would take too
            long.
        MissingDependency: google-re2 is not installed.
    """
    compiled = _compile(text)
    encoded = {name: _encode(name) for name in names}
    length = sum(len(each) + 1 for each in encoded.values())
    if compiled.programsize * length > STEPS_MAX:
        raise UnusableRegex(
            "matching would take too long: the expression has"
            f" {compiled.programsize} states and all names together {length} bytes, but their"
            f" product may be at most {STEPS_MAX}"
        )
    return frozenset(name for name, each in encoded.items() if compiled.fullmatch(each))


def _compile(text: str) -> _Compiled:
    try:
        import re2
    except ImportError as error:
        raise MissingDependency(
            f"regular expressions need google-re2: pip install 'tidelog[broker]' ({error})"
        ) from error
    if len(text) > LENGTH_MAX:
        raise UnusableRegex(f"longer than {LENGTH_MAX} characters")
    if text.count("\\p") + text.count("\\P") > UNICODE_CLASSES_MAX:
        raise UnusableRegex(f"more than {UNICODE_CLASSES_MAX} Unicode classes")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_MAX
    options.never_capture = True
    try:
        return cast("_Compiled", re2.compile(_encode(text), options))
    except re2.error as error:
        raise UnusableRegex(_reason(error)) from error


def _encode(text: str) -> bytes:
    """Encode as UTF-8. An unpaired surrogate counts as a character."""
    return text.encode("utf-8", "surrogatepass")


def _reason(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
