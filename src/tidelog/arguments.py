"""Converts and checks the arguments of public calls, by parameter name and annotation.

Arguments are converted if their meaning is clear: text or an enum to a choice, a `Path` to text, a
`datetime` to ms, numbers to settings, dicts to records. A checked argument that can't be converted
raises a typed error that names the argument and the accepted values. Functions and classes are
marked with the decorator `reads_arguments`. A test finds public calls without this decorator.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum, IntEnum, StrEnum
from functools import partial, wraps
from operator import index
from os import PathLike, fspath
from types import UnionType
from typing import (
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)
from uuid import UUID

from tidelog.errors import ConfigError, InvalidChoice, InvalidRequest, InvalidTime
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    ClockName,
    Codec,
    Compression,
    Isolation,
    IsolationLevel,
    NewRecord,
    TopicPartition,
    whole_ms,
)

Chosen = TypeVar("Chosen", bound=Enum)
Target = TypeVar("Target", bound=Callable[..., object])


class Inexact(StrEnum):
    """Ways to read a table as of a time if some of the table's records no longer exist."""

    REFUSE = "refuse"
    MARK = "mark"


class KeyOrder(StrEnum):
    """Order of keys: the largest sum of bytes first, or the largest number of records first."""

    BYTES = "bytes"
    RECORDS = "records"


# Default number of keys or records that `Scan.counts_by_key` and `Scan.repeated` return.
KEYS_SHOWN: Final = 10


# Maps a parameter name to the enum of its choices. A name has the same enum in every signature.
CHOICES: Final[Mapping[str, type[Enum]]] = {
    "clock": ClockName,
    "isolation": IsolationLevel,
    "codec": Codec,
    "inexact": Inexact,
}


def choice(kind: type[Chosen], argument: object, name: str) -> Chosen:
    """Return the enum member for an argument.

    Args:
        kind: The enum. The text of a numeric member is its name in lower case.
        argument: A member, the text of a member, or (for a numeric enum) the number of a member.
        name: Name of the parameter, for the error.

    Raises:
        InvalidChoice: There is no such member.
    """
    if isinstance(argument, kind):
        return argument
    if isinstance(argument, str):
        for member in kind:
            if word_of(member) == argument.lower():
                return member
    elif type(argument) is int and issubclass(kind, IntEnum) and argument in set(map(int, kind)):
        return kind(argument)
    words = ", ".join(map(word_of, kind))
    raise InvalidChoice(
        f"{name} is {argument!r:.60}; give one of {words}, as text or {kind.__name__}"
    )


def level_of(argument: Isolation) -> IsolationLevel:
    """Return an isolation level given as a member or as text; raises InvalidChoice."""
    return choice(IsolationLevel, argument, "isolation")


@overload
def codec_of(argument: Compression) -> Codec: ...
@overload
def codec_of(argument: None) -> None: ...
def codec_of(argument: Compression | None) -> Codec | None:
    """Return the codec for a member or a text, and None for None; raises InvalidChoice."""
    return None if argument is None else choice(Codec, argument, "codec")


def choices_of(kind: type[Chosen], argument: object, name: str) -> frozenset[Chosen]:
    """Return one or several enum members given as members or text; raises InvalidChoice."""
    if isinstance(argument, str | Enum) or not isinstance(argument, Iterable):
        return frozenset([choice(kind, argument, name)])
    return frozenset(choice(kind, one, name) for one in argument)


def word_of(member: Enum) -> str:
    """Return the text of a choice."""
    return str(member) if isinstance(member, StrEnum) else member.name.lower()


def reads_arguments(**more: type[Enum]) -> Callable[[Target], Target]:
    """Return a decorator that converts and checks the arguments of functions or methods.

    `choice` converts choices, and paths become text. For some names of parameters, `READERS` has
    the function that converts the argument. Arguments annotated as text, numbers, flags, partitions
    or settings must have that type. Most other annotations are not checked, which keeps calls fast.
    If a parameter's default is None, None is accepted and passed on.

    Args:
        more: Enums of further parameters, by parameter name, in addition to `CHOICES`.

    Raises:
        InvalidRequest: Raised by the decorated function; the text names the argument and the
            accepted values. An invalid setting raises ConfigError instead.
    """

    def decorate(target: Target) -> Target:
        if not inspect.isclass(target):
            return cast("Target", _reading(target, more))
        for name, member in list(vars(target).items()):
            if name.startswith("_"):
                continue
            if inspect.isfunction(member):
                setattr(target, name, _reading(member, more))
            elif isinstance(member, classmethod):
                setattr(target, name, classmethod(_reading(member.__func__, more)))
        return target

    return decorate


Read: TypeAlias = Callable[[object, str], object]


class _Reader(NamedTuple):
    """Conversion of one parameter.

    Attributes:
        plain: Types of arguments that are passed on unchanged. Checking whether an argument has one
            of these types takes almost no time.
        read: Converts an argument of another type.
    """

    plain: frozenset[object]
    read: Read


def _reading(
    function: Callable[..., object], more: Mapping[str, type[Enum]]
) -> Callable[..., object]:
    parameters = inspect.signature(function).parameters
    choices = {**CHOICES, **more}
    kinds = {name: choices[name] for name in parameters if name in choices}
    readers = {name: reader for name in parameters if (reader := _reader(parameters[name], kinds))}
    if not readers:
        return function
    positional = tuple(
        (at, name, *readers[name]) for at, name in enumerate(parameters) if name in readers
    )

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        if kwargs:
            for name, argument in kwargs.items():
                reader = readers.get(name)
                if reader is not None and type(argument) not in reader.plain:
                    kwargs[name] = reader.read(argument, name)
        count = len(args)
        for at, name, plain, read in positional:
            if at >= count:
                break
            argument = args[at]
            if type(argument) not in plain:
                converted = read(argument, name)
                if converted is not argument:
                    args = (*args[:at], converted, *args[at + 1 :])
        return function(*args, **kwargs)

    call.choices = kinds  # type: ignore[attr-defined] # tests compare it with the signature
    return call


def _reader(parameter: inspect.Parameter, kinds: Mapping[str, type[Enum]]) -> _Reader | None:
    name = parameter.name
    if name in ("self", "cls") or parameter.kind in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    ):
        return None
    if name in kinds:
        kind = kinds[name]
        plain = frozenset({kind, type(None)} if parameter.default is None else {kind})
        return _Reader(plain, lambda argument, name: choice(kind, argument, name))
    if name in READERS:
        read = READERS[name]
        takes_none = parameter.default is None or type(None) in kinds_of(parameter.annotation)
        return _Reader(frozenset(), read if takes_none else partial(_required, read))
    return _path_reader(parameter.annotation) or _typed(parameter.annotation)


def _required(read: Read, argument: object, name: str) -> object:
    if argument is None:
        raise InvalidRequest(f"{name} must not be None")
    return read(argument, name)


def kinds_of(annotation: object) -> frozenset[object]:
    """Return the alternatives of an annotation that is a union, or else the annotation itself."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return frozenset(get_args(annotation) if is_union else (annotation,))


def _typed(annotation: object) -> _Reader | None:
    """Return the reader for the annotation of a parameter that has no more specific reader.

    The result is None for an annotation that is not checked.
    """
    kinds = kinds_of(annotation)
    lists = frozenset[object]().union(*map(_elements_of, kinds))
    if TopicPartition in kinds | lists:
        return _Reader(frozenset(), partial(_as_partitions, kinds, lists))
    takes_text = str in kinds or any(map(_is_path, kinds))
    if not takes_text and str in lists:
        return _Reader(frozenset({list, tuple, type(None)}), _as_names)
    if kinds - {type(None)} and all(map(_is_settings, kinds - {type(None)})):
        return _Reader(frozenset({type(None)}), _as_dict)
    if not kinds <= _PLAIN:
        return _other(lists, takes_text=takes_text)
    words = " or ".join(word for kind, word in _WORDS.items() if kind in kinds)

    def read(argument: object, name: str) -> object:
        if str in kinds and isinstance(argument, str | PathLike):
            return _as_path(argument, name)
        if int in kinds and not isinstance(argument, bool):
            try:
                return _as_int64(index(argument), name)  # type: ignore[arg-type] # or a TypeError
            except TypeError:
                pass
        if float in kinds and isinstance(argument, int | float) and not isinstance(argument, bool):
            return float(argument if isinstance(argument, float) else _as_int64(argument, name))
        raise InvalidRequest(
            f"{name} is {argument!r:.60} ({type(argument).__name__}); give {words}"
        )

    # Every int is checked, because an int of more than 64 bits would fail much later, with an error
    # that doesn't name the parameter.
    return _Reader(kinds - {int}, read)


def _other(lists: frozenset[object], *, takes_text: bool) -> _Reader | None:
    """Return the reader for text, or for lists of ints; None for other annotations."""
    if takes_text:
        return _Reader(frozenset({str}), _as_path)
    return _Reader(frozenset(), _as_numbers) if lists == {int} else None


def _as_int64(argument: int, name: str) -> int:
    if INT64_MIN <= argument <= INT64_MAX:
        return argument
    raise InvalidRequest(f"{name} is {_digits(argument)}; give a whole number of at most 64 bits")


def _digits(argument: int) -> str:
    """Return an integer as text; for a huge integer, return only how many bits it has."""
    return (
        str(argument)
        if argument.bit_length() <= _PRINTED_BITS_MAX
        else f"{argument.bit_length()} bits long"
    )


def _as_numbers(argument: object, name: str) -> object:
    if isinstance(argument, list | tuple):
        for one in argument:
            if isinstance(one, int):
                _as_int64(one, name)
    return argument


def _is_settings(kind: object) -> bool:
    """Return whether an annotation is a mapping of names to values of settings."""
    origin, words = get_origin(kind), get_args(kind)
    if not (isinstance(origin, type) and issubclass(origin, Mapping)) or words[0] is not str:
        return False
    return set(get_args(words[1]) or {words[1]}) <= {str, object, type(None)}


def _as_dict(argument: object, name: str) -> object:
    if argument is None or isinstance(argument, Mapping):
        return argument
    raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); give a dict")


def _as_env(argument: object, name: str) -> object:
    if argument is None or all(hasattr(argument, part) for part in ("files", "clock", "random")):
        return argument
    raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); give an Env")


def _as_names(argument: object, _: str) -> object:
    return [argument] if isinstance(argument, str) else argument


def _elements_of(kind: object) -> frozenset[object]:
    """Return the element types of an annotated iterable; empty for mappings and other types."""
    origin = get_origin(kind)
    if not isinstance(origin, type) or issubclass(origin, Mapping):
        return frozenset()
    elements = get_args(kind)[:1] if issubclass(origin, Iterable) else ()
    return frozenset().union(*map(kinds_of, elements))


def _as_partitions(
    kinds: frozenset[object], lists: frozenset[object], argument: object, name: str
) -> object:
    """Convert a topic or partition to a type in `kinds`, or an iterable to a list.

    The types of the list's elements are in `lists`.
    """
    if argument is None and type(None) in kinds:
        return None
    partitions = _as_name(argument, kinds | lists, name)
    if partitions is not None:
        return partitions if kinds & {str, TopicPartition} else [partitions]
    if lists and isinstance(argument, Iterable) and not isinstance(argument, bytes | Mapping):
        some = [_as_name(one, lists, name) for one in argument]
        if None not in some:
            return some
    form = "a TopicPartition(topic, number)"
    form = f"a topic's name or {form}" if str in kinds | lists else form
    form = f"{form}, or a list of these" if lists else form
    raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); give {form}")


def _as_name(argument: object, kinds: frozenset[object], name: str) -> str | TopicPartition | None:
    if isinstance(argument, str):
        return argument if str in kinds else None
    match argument:
        case TopicPartition():
            partition = argument
        case tuple((str(topic), int(at))):
            partition = TopicPartition(topic, at)
        case _:
            return None
    number: object = partition.partition
    if type(number) is int and 0 <= number <= INT32_MAX:
        return partition
    number_text = _digits(number) if isinstance(number, int) else f"{number!r:.60}"
    where = f"{name} has partition {number_text} of topic {partition.topic!r}"
    raise InvalidRequest(f"{where}; give a number from 0 to {INT32_MAX}")


def _as_times(argument: object, name: str) -> object:
    form = "give a dict from TopicPartition(topic, number) to ms since 1970"
    if not isinstance(argument, Mapping):
        raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); {form}")
    times = {}
    for key, value in argument.items():
        partition, ms = _as_name(key, frozenset(), name), as_time(value, f"{name}[{key!s}]")
        if partition is None or not isinstance(ms, int):
            raise InvalidRequest(f"{name} has {key!r:.60}: {value!r:.60}; {form}")
        times[partition] = ms
    return times


def _as_offsets(argument: object, name: str) -> object:
    form = "give a dict from TopicPartition(topic, number) to offsets"
    if not isinstance(argument, Mapping):
        raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); {form}")
    offsets = {}
    for key, value in argument.items():
        partition = _as_name(key, frozenset(), name)
        if partition is None or isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidRequest(f"{name} has {key!r:.60}: {value!r:.60}; {form}")
        offsets[partition] = _as_int64(index(value), f"{name}[{key!s}]")
    return offsets


_WORDS: Final = {
    str: "text",
    int: "a whole number",
    bool: "True or False",
    float: "a number",
    type(None): "None",
}
# Maximum number of bits of an integer that an error shows. For a larger integer, the error shows
# only how many bits it has.
_PRINTED_BITS_MAX: Final = 128
_PLAIN: Final = frozenset({str, int, bool, float, type(None)})


def _is_path(kind: object) -> bool:
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, PathLike)


def _path_reader(annotation: object) -> _Reader | None:
    """Return the reader for an annotation that has only paths and plain types; None for others."""
    kinds = kinds_of(annotation)
    if not any(map(_is_path, kinds)) or not all(_is_path(kind) or kind in _PLAIN for kind in kinds):
        return None
    return _Reader(frozenset(), partial(_as_path_text, takes_none=type(None) in kinds))


def _as_path_text(argument: object, name: str, *, takes_none: bool) -> object:
    """Convert a path to text."""
    if argument is None and takes_none:
        return None
    path = _as_path(argument, name)
    if not isinstance(path, str) or not path:
        raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); give a path")
    return path


def _as_topic_id(argument: object, name: str) -> object:
    if isinstance(argument, str):
        with suppress(ValueError):
            return UUID(argument)
    if argument is None or isinstance(argument, UUID):
        return argument
    raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); give a UUID")


def _as_path(argument: object, name: str) -> object:
    if not isinstance(argument, PathLike):
        return argument
    path: object = fspath(argument)
    if not isinstance(path, str):
        raise InvalidRequest(f"{name} is a path of bytes; give text")
    return path


def as_time(argument: object, name: str) -> object:
    """Return a time as ms or text; a datetime is rounded up to ms, as `parse_point` rounds text.

    Raises:
        InvalidTime: A datetime has no time zone, or a time is before 1970 or above INT64_MAX ms.
        InvalidRequest: The argument is of another type.
    """
    if argument is None or isinstance(argument, str):
        return argument
    ms = whole_ms(argument, name, rounds_up=True, also="text in the grammar of docs/time.md")
    if not 0 <= ms <= INT64_MAX:
        reason = (
            "is negative; give 0 or more"
            if ms < 0
            else "is later than the last time that a log can store (2^63-1 ms)"
        )
        raise InvalidTime(str(ms), f"{name} {reason}")
    return ms


def _as_columns(argument: object, name: str) -> object:
    if argument is None:
        return None
    if isinstance(argument, str):
        return (argument,)
    if isinstance(argument, bytes | Mapping) or not isinstance(argument, Iterable):
        raise InvalidRequest(f"{name} is {argument!r:.60}; give names of columns")
    return tuple(argument)


def _as_settings(argument: object, name: str) -> object:
    """Convert settings' values to text as Kafka writes it; raises ConfigError for a value None."""
    settings = _as_changes(argument, name)
    for key, value in cast("Mapping[str, object]", settings or {}).items():
        if value is None:
            raise ConfigError(key, "None", "must be text; leave the setting out for its default")
    return settings


def _as_changes(argument: object, name: str) -> object:
    """Convert changed settings to text; a value of None stays None, which resets the setting."""
    if argument is None:
        return None
    if not isinstance(argument, Mapping):
        raise InvalidRequest(
            f"{name} is {argument!r:.60}; give a dict of settings by Kafka's names"
        )
    return {key: _as_setting(key, value) for key, value in argument.items()}


def _as_setting(key: object, value: object) -> object:
    if not isinstance(key, str):
        raise InvalidRequest(f"the name of setting {key!r:.60} is {type(key).__name__}; give text")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise ConfigError(key, repr(value)[:60], "must be text, a number, a flag, or a list of texts")


def _as_records(argument: object, name: str) -> object:
    """Convert one record or an iterable of records."""
    if type(argument) is list and _RECORD_TYPE.issuperset(map(type, argument)):
        return argument
    if isinstance(argument, bytes | str | Mapping | NewRecord):
        return [_as_record(argument, name)]
    if not isinstance(argument, Iterable):
        raise InvalidRequest(f"{name} is {argument!r:.60} ({type(argument).__name__}); {_RECORDS}")
    return (_as_record(one, name) for one in argument)


_RECORDS: Final = (
    "give NewRecords, dicts with key, value, timestamp and headers, or bytes as values"
)
_FIELDS: Final = frozenset({"key", "value", "timestamp", "headers"})
_RECORD_TYPE: Final = frozenset({NewRecord})


def _as_record(argument: object, name: str) -> object:
    if isinstance(argument, bytes | str):
        return NewRecord(value=argument)  # type: ignore[arg-type] # it encodes text
    if isinstance(argument, Mapping):
        if unknown := sorted(map(str, argument.keys() - _FIELDS)):
            raise InvalidRequest(f"{name}: a record has no {unknown[0]!r}; {_RECORDS}")
        return NewRecord(**{"headers": (), **argument})
    if all(hasattr(argument, field) for field in _FIELDS):
        return argument
    raise InvalidRequest(f"{name}: {argument!r:.60} is {type(argument).__name__}; {_RECORDS}")


# For all public calls: maps the name of a parameter to the function that converts its argument.
READERS: Final[Mapping[str, Read]] = {
    **dict.fromkeys(("start", "end", "at", "when", "before", "after"), as_time),
    "times": _as_times,
    "offsets": _as_offsets,
    "columns": _as_columns,
    "config": _as_settings,
    "changes": _as_changes,
    "records": _as_records,
    "env": _as_env,
    "topic_id": _as_topic_id,
}
