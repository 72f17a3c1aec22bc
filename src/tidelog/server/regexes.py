"""Regular expressions of clients: RE2's language, matched in time that grows with the text alone.

Python's own engine can take for ever on a short text, so they run on RE2 (google-re2), which is
loaded for the first one that comes. Why that library: docs/decisions/0027-regular-expressions.md.

Source: KIP-848 and KIP-1152 (a whole text has to match); Kafka 4.3's RE2J.
"""

from collections.abc import Iterable
from typing import Final, Protocol, cast

from tidelog.errors import MissingDependency

LENGTH_MAX: Final = 4096
# Each makes RE2 look at hundreds of ranges, and whoever waits for a heartbeat waits for that.
UNICODE_CLASSES_MAX: Final = 200
# Bytes of what RE2 makes of an expression, and of the states that it remembers; it keeps 128.
MEMORY_MAX: Final = 1 << 20
# Steps for one look at all texts, if none is remembered: some seconds at most.
STEPS_MAX: Final = 2_000_000_000


class _Compiled(Protocol):
    """What is used of an expression of RE2's, for the library ships no types."""

    programsize: int

    def fullmatch(self, text: bytes) -> object | None: ...


class UnusableRegex(ValueError):
    """An expression breaks a rule, is larger than a bound, or would take too long."""


def require_usable(text: str) -> None:
    """Take an expression or refuse it.

    Raises:
        UnusableRegex: It breaks a rule of RE2's, or is too large.
        MissingDependency: google-re2 is not installed.
    """
    _compile(text)


def find_matches(text: str, names: Iterable[str]) -> frozenset[str]:
    """The names that an expression matches as a whole. For any thread.

    Raises:
        UnusableRegex: It breaks a rule of RE2's, is too large, or would take too long.
        MissingDependency: google-re2 is not installed.
    """
    compiled = _compile(text)
    encoded = {name: _encode(name) for name in names}
    length = sum(len(each) + 1 for each in encoded.values())
    if compiled.programsize * length > STEPS_MAX:
        raise UnusableRegex(
            f"{compiled.programsize} states of the expression times {length} bytes of all names"
            f" are more than {STEPS_MAX} steps"
        )
    return frozenset(name for name, each in encoded.items() if compiled.fullmatch(each))


def _compile(text: str) -> _Compiled:
    try:
        import re2  # type: ignore[import-untyped]  # ships no types
    except ImportError as error:
        raise MissingDependency(
            f"regular expressions need google-re2: pip install 'tidelog[broker]' ({error})"
        ) from error
    if len(text) > LENGTH_MAX:
        raise UnusableRegex(f"longer than {LENGTH_MAX} characters")
    if text.count("\\p") + text.count("\\P") > UNICODE_CLASSES_MAX:
        raise UnusableRegex(f"more than {UNICODE_CLASSES_MAX} classes of Unicode")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_MAX
    options.never_capture = True
    try:
        return cast("_Compiled", re2.compile(_encode(text), options))
    except re2.error as error:
        raise UnusableRegex(_told(error)) from error


def _encode(text: str) -> bytes:
    """UTF-8; half a pair of surrogates is a character as well."""
    return text.encode("utf-8", "surrogatepass")


def _told(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
