"""Requests, answers and errors of the control channel, as JSON objects.

Request: `{"version": 1, "verb": NAME, "arguments": {...}}`. Answer: `{"version": 1, "result":
{...}}`, or `{"version": 1, "error": {"type": CLASS, "text": ..., "fields": {...}}}`: the class is
one of `tidelog.errors`. Pure.
"""

import json
from collections.abc import Mapping
from typing import Final

from tidelog import errors
from tidelog.control.frames import Message
from tidelog.errors import CorruptMessage, TidelogError, UnsupportedVersion

CONTROL_VERSION: Final = 1

# Classes that are made of more than a text: of these fields, in order, "" for the text itself.
_FIELDS: Final[Mapping[type[TidelogError], tuple[str, ...]]] = {
    errors.StorageFailure: ("path", "operation", "reason"),
    errors.ClockJump: ("last_ms", "now_ms", ""),
    errors.ConfigError: ("key", "value", "allowed"),
}
_CORRUPT: Final = ("reason", "at", "offset", "path", "position")


class ControlFailure(TidelogError):
    """The holder could not be asked, or its answer was lost: it may have done what it was asked."""


def request(verb: str, arguments: Mapping[str, object]) -> Message:
    """A request."""
    return {"version": CONTROL_VERSION, "verb": verb, "arguments": dict(arguments)}


def answer(result: Mapping[str, object]) -> Message:
    """The answer to a request that was carried out."""
    return {"version": CONTROL_VERSION, "result": dict(result)}


def refusal(error: TidelogError) -> Message:
    """The answer to a request that was not."""
    kind = type(error)
    names = _CORRUPT if isinstance(error, errors.CorruptData) else _fields_of(kind)
    fields = {name: getattr(error, name) for name in names if name}
    told = {"type": kind.__name__, "text": str(error), "fields": fields}
    return {"version": CONTROL_VERSION, "error": told}


def _fields_of(kind: type[TidelogError]) -> tuple[str, ...]:
    for known, names in _FIELDS.items():
        if issubclass(kind, known):
            return names
    return ()


def read_request(message: Message) -> tuple[str, Mapping[str, object]]:
    """Verb and arguments.

    Raises:
        UnsupportedVersion: A later release asks.
        CorruptMessage: No request.
    """
    _check_version(message)
    verb, arguments = message.get("verb"), message.get("arguments")
    if not isinstance(verb, str) or not isinstance(arguments, dict):
        raise CorruptMessage(f"no verb and arguments in {_shown(message)}")
    return verb, arguments


def read_answer(message: Message) -> Mapping[str, object]:
    """What was answered.

    Raises:
        TidelogError: The error that the holder has met, of its own type.
        UnsupportedVersion, CorruptMessage: It is no answer.
    """
    _check_version(message)
    error = message.get("error")
    if isinstance(error, dict):
        raise _read_error(error)
    result = message.get("result")
    if not isinstance(result, dict):
        raise CorruptMessage(f"neither result nor error in {_shown(message)}")
    return result


def _check_version(message: Message) -> None:
    if message.get("version") != CONTROL_VERSION:
        raise UnsupportedVersion(
            f"control channel of version {message.get('version')!r}, {CONTROL_VERSION} is known"
        )


def _read_error(told: Mapping[str, object]) -> TidelogError:
    kind = getattr(errors, str(told.get("type")), None)
    text, fields = str(told.get("text")), told.get("fields")
    if not (isinstance(kind, type) and issubclass(kind, TidelogError)):
        return ControlFailure(f"{told.get('type')}: {text}")
    if not isinstance(fields, dict):
        return ControlFailure(f"{kind.__name__}: {text}")
    try:
        if issubclass(kind, errors.CorruptData):
            return kind(fields["reason"], **{name: fields[name] for name in _CORRUPT[1:]})
        names = _fields_of(kind)
        return kind(*[fields[name] if name else text for name in names]) if names else kind(text)
    except (KeyError, TypeError):
        return ControlFailure(f"{kind.__name__}: {text}")  # of a later release


def _shown(message: Mapping[str, object]) -> str:
    return json.dumps(message)[:200]
