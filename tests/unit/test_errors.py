"""Errors keep their attributes and their text when they are pickled or copied."""

import copy
import inspect
import pickle  # noqa: TID251 - data of this test only
from collections.abc import Callable

import pytest

from tidelog.errors import ConfigError, LostOffsets, RecordError, TidelogError

# Arguments by parameter name, for parameters that are neither text nor a number.
GIVEN = {
    "lost": (LostOffsets("t", 0, 1, 2, "deleted"),),
    "record_errors": (RecordError(3, "too old"),),
    "errors": [ConfigError("a", "1", "2 or more"), ConfigError("b", None, "unknown")],
    "findings": (),
}


def kinds(base: type[TidelogError] = TidelogError) -> list[type[TidelogError]]:
    return [base, *(one for kind in base.__subclasses__() for one in kinds(kind))]


def made(kind: type[TidelogError]) -> TidelogError:
    """Create an error of this class with all attributes set."""
    args: list[object] = []
    named: dict[str, object] = {}
    ours = [one for one in kind.__mro__ if issubclass(one, TidelogError)]
    if not any("__init__" in vars(one) for one in ours):
        return kind("a text", 5)
    for number, one in enumerate(inspect.signature(kind).parameters.values()):
        is_number = "int" in str(one.annotation)
        value = GIVEN.get(one.name, 70 + number if is_number else f"text {number}")
        if one.kind is one.KEYWORD_ONLY:
            named[one.name] = value
        else:
            args.append(value)
    return kind(*args, **named)


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=str))
@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_an_error_survives_pickling_and_copying(
    kind: type[TidelogError], again: Callable[[TidelogError], TidelogError]
) -> None:
    error = made(kind)
    found = again(error)
    assert type(found) is kind
    assert (str(found), found.args, found.code) == (str(error), error.args, error.code)
    assert repr(vars(found)) == repr(vars(error))
    if isinstance(error, OSError):
        assert isinstance(found, OSError)
        assert (found.errno, found.filename) == (error.errno, error.filename)
