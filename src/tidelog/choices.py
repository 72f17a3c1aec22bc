"""Choices among words: how every public call reads them, by name of the parameter.

A choice is taken as a member of its enum or as text (`read_committed`, in any case), and refused
with the words that there are. Functions and classes are marked with `takes_choices`; a test walks
all public signatures, so that no call is left out.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum, StrEnum
from functools import wraps
from typing import Final, TypeVar, cast

from tidelog.errors import InvalidChoice
from tidelog.types import ClockName, Codec, IsolationLevel

Chosen = TypeVar("Chosen", bound=Enum)
Target = TypeVar("Target", bound=Callable[..., object])


class Inexact(StrEnum):
    """What becomes of a table as of a time that is not whole any more."""

    REFUSE = "refuse"
    MARK = "mark"


# Names that mean the same choice in every signature.
CHOICES: Final[Mapping[str, type[Enum]]] = {
    "clock": ClockName,
    "isolation": IsolationLevel,
    "codec": Codec,
    "inexact": Inexact,
}


def choice(kind: type[Chosen], given: object, name: str) -> Chosen:
    """Return the member that an argument names.

    Args:
        kind: The choices. Those that are numbers in a format go by their names in small letters.
        given: A member, its text, or the number of a choice that is a number.
        name: The parameter, for the error.

    Raises:
        InvalidChoice: There is no such member.
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, str):
        for member in kind:
            if word_of(member) == given.lower():
                return member
    elif type(given) is int and issubclass(kind, IntEnum) and given in set(map(int, kind)):
        return cast("Chosen", kind(given))
    words = ", ".join(map(word_of, kind))
    raise InvalidChoice(f"{name} is {given!r:.60}; give one of {words}, as text or {kind.__name__}")


def choices_of(kind: type[Chosen], given: object, name: str) -> frozenset[Chosen]:
    """Return the members that an argument names: one, or some of them; raises InvalidChoice."""
    if isinstance(given, str | Enum) or not isinstance(given, Iterable):
        return frozenset([choice(kind, given, name)])
    return frozenset(choice(kind, one, name) for one in given)


def word_of(member: Enum) -> str:
    """Return a choice as text."""
    return str(member) if isinstance(member, StrEnum) else member.name.lower()


def takes_choices(**more: type[Enum]) -> Callable[[Target], Target]:
    """Return a decorator that reads the choices among the arguments of a function or a class.

    Of a class, all public methods that it defines are decorated. A default of None is kept.

    Args:
        more: Parameters beside those of `CHOICES`.
    """

    def decorate(target: Target) -> Target:
        if not inspect.isclass(target):
            return cast("Target", _reading(target, more))
        for name, member in list(vars(target).items()):
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(target, name, _reading(member, more))
        return cast("Target", target)

    return decorate


def _reading(function: Callable[..., object], more: Mapping[str, type[Enum]]) -> object:
    parameters = inspect.signature(function).parameters
    known = {**CHOICES, **more}
    kinds = {name: known[name] for name in parameters if name in known}
    if not kinds:
        return function
    places = {at: name for at, name in enumerate(parameters) if name in kinds}
    nullable = frozenset(name for name in kinds if parameters[name].default is None)

    def read(name: str, given: object) -> object:
        return given if given is None and name in nullable else choice(kinds[name], given, name)

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        for name in kinds:
            if name in kwargs:
                kwargs[name] = read(name, kwargs[name])
        if len(args) > 1 and any(at < len(args) for at in places):
            args = tuple(
                read(places[at], given) if at in places else given for at, given in enumerate(args)
            )
        return function(*args, **kwargs)

    call.choices = kinds  # type: ignore[attr-defined]
    return call
