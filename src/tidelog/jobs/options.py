"""Options of jobs. One declaration of an option serves the job's function, command and docs.

A job's options are the keys of a `TypedDict` in `jobs/NAME/options.py`, each annotated with an
`Option`. The public function accepts the keys as keywords (`takes_options`). From the annotations,
`tidelog.cli.options` creates the command's options, and tools/job_docs.py creates the table in
docs/jobs.md. Modules of options have few imports, because `--help` imports them (and no other
module of a job). Texts (times, settings of stores) are parsed by the command or the job, not in
these modules.

The jobs replay, bootstrap, audit and mirror need their options before Spark has started. Each of
these jobs passes its options to the object that plans the job's work. The planning object checks
the options, and all steps of the job use the checked options.

Invariant: the keywords of a job's function are the keys of its TypedDict, in the same order and
with the defaults of their `Option`s.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import wraps
from typing import Final, TypeVar, cast, get_args, get_origin

from tidelog.arguments import kinds_of, reads_arguments
from tidelog.errors import InvalidChoice, InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.types import ClockName, Codec, Isolation, IsolationLevel

_Function = TypeVar("_Function", bound=Callable[..., object])

REQUIRED: Final = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of one option of a job.

    Attributes:
        text: Description in the docs and in the command's help.
        flags: Names in the command, separated by spaces; empty if only the function has the option.
        default: Default value.
        keyword: Description of the function's argument in its docstring; empty if `text` describes
            the argument correctly, too.
        metavar: Placeholder for the value in the help.
        choices: Allowed values, as an enumeration or as words.
        least: Smallest allowed value of an option that is a number.
        sets: Value that is set by a flag without an argument.
        read: Function that parses each value of an option that can be repeated; None if the values
            are text.
        shows_default: Whether the command's help shows the default if the default is text or an
            integer.
    """

    text: str
    flags: str = ""
    default: object = None
    keyword: str = ""
    metavar: str | None = None
    choices: type[Enum] | tuple[str, ...] = ()
    least: int | None = None
    sets: object = None
    read: Callable[[str], object] | None = None
    shows_default: bool = True


# Options of several jobs.
CREATE: Final = Option(
    "Create the topic with N partitions if it does not exist. Default: the topic must exist.",
    "--create",
    metavar="N",
    least=1,
)
CONFIG: Final = Option(
    "A setting of the topic that --create creates; repeatable. Default: Kafka's defaults.",
    "--config -c",
    metavar="KEY=VALUE",
)
FORCE: Final = Option(
    "Continue even if the target would lose records. Default: refuse.",
    "--force",
    default=False,
)
CODECS: Final = tuple(codec.config_name for codec in Codec)
SINK: Final = Option("More options of the sink, such as `compression`.")

# Options of jobs and of other commands; `tidelog.cli.options` creates click's options from them.
CLOCK: Final = Option(
    "record: the record's own timestamp; append: the time at which the log appended the record.",
    "--clock",
    ClockName.RECORD,
    choices=ClockName,
)
COMPRESSION: Final = Option(
    "Compression of batches if the topic sets none. Default: none.", "--compression", choices=CODECS
)

# Options that a job passes on to its sink. These options determine how records are written, but not
# the place and topic of the target. `markerTopic` and `transactionalIdPrefix` determine where a
# repeated write looks for the markers of an earlier attempt.
SINK_OPTIONS: Final = (
    *("kafka.*", "compression", "batchBytes", "keyAs", "valueAs", "clock.ms", "lockWaitMs"),
    *("markerTopic", "transactionalIdPrefix"),
)


def check_passed_on(
    keyword: str,
    options: Mapping[str, str] | None,
    allowed: Sequence[str],
    reasons: Mapping[str, str],
) -> None:
    """Check the options for a source or sink that a user gives to a job.

    Args:
        keyword: Name of the job's option that contains these options.
        options: The user's options by name; names are case-insensitive.
        allowed: Names that are allowed; `kafka.*` allows all names with that prefix.
        reasons: Reasons for names that are not allowed, with what to do instead.

    Raises:
        InvalidRequest: An option is not allowed; the message names the first such option.
    """
    reasons_by_name = {name.lower(): reason for name, reason in reasons.items()}
    for option in options or {}:
        name = option.lower()
        reason = reasons_by_name.get(name)
        if reason is None and any(fnmatchcase(name, one.lower()) for one in allowed):
            continue
        reason = reason or f"is not supported; use one of {', '.join(allowed)}"
        raise InvalidRequest(f"{keyword}: option {option} {reason}")


def check_sink_options(keyword: str, options: Mapping[str, str] | None) -> None:
    """Check a user's options for the sink of a job; raises the errors of `check_passed_on`."""
    check_passed_on(keyword, options, SINK_OPTIONS, _OF_TARGET)


_OF_TARGET: Final = (
    dict.fromkeys(
        ("path", "kafka.bootstrap.servers", "topic"),
        "would change the place to which the job writes: leave the option out, or give the other"
        " place as the target",
    )
    | {
        "createPartitions": "is set by the job: leave the option out, and use the job's option"
        " create",
        "createConfig": "is set by the job: leave the option out, and use the job's option config",
    }
    | dict.fromkeys(
        ("txnAppId", "txnVersion", "delivery"),
        "is set by the job to detect repeated writes: leave the option out",
    )
)


def isolation(default: Isolation, text: str = "") -> Option:
    """Return an option for the isolation level; `text` replaces its standard description."""
    return Option(
        text or "read_committed leaves out open and aborted transactions.",
        "--isolation",
        default,
        choices=IsolationLevel,
    )


def point_ms(time: int | str | None, now_ms: int) -> int | None:
    """Return a point in time in ms, parsed if it is text; None for None. Raises InvalidTime."""
    if not isinstance(time, str):
        return time
    from tidelog.timespec import parse_point  # imported here, because `--help` needs no times

    return parse_point(time, now_ms=now_ms)


def options_of(kind: type) -> dict[str, tuple[object, Option]]:
    """Return the type and the declaration of each option in a TypedDict, by name."""
    declared = {}
    for name, annotation in kind.__annotations__.items():
        if len(arguments := get_args(annotation)) == 1:  # unwraps Required[...]
            of, option = get_args(arguments[0])
            declared[name] = (of, replace(option, default=REQUIRED))
        else:
            declared[name] = arguments
    return declared


def takes_options(kind: type, **choices: type[Enum]) -> Callable[[_Function], _Function]:
    """Return a decorator for a function whose `**options` are the keys of a TypedDict.

    The decorated function passes all options to the original function, with defaults for options
    that the caller leaves out. The decorated function's signature has the options as keywords, and
    its docstring lists the options instead of the line `**options`. Arguments are parsed as by
    `reads_arguments`. A number has the same minimum as in the command. A word has the same allowed
    values as in the command, unless `choices` has others.

    Args:
        kind: The TypedDict with the options.
        choices: Enumerations with the values that the function allows, by option. Needed only for
            an option whose allowed values in the function and the command differ.

    Raises:
        InvalidRequest: Raised by the decorated function for a value that is not allowed; the
            message has the option, the value and what is allowed.
    """
    declared = options_of(kind)
    limited = {
        name: one
        for name, (_, one) in declared.items()
        if one.least is not None or (isinstance(one.choices, tuple) and name not in choices)
    }
    choices |= {
        name: one.choices
        for name, (kind, one) in declared.items()
        if isinstance(one.choices, type) and Iterable not in map(get_origin, kinds_of(kind))
    }
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation
        )
        for name, (annotation, one) in declared.items()
    ]

    def decorate(function: _Function) -> _Function:
        plain = inspect.signature(function)
        signature = plain.replace(parameters=[*list(plain.parameters.values())[:-1], *keywords])

        @wraps(function)
        def call(*args: object, **options: object) -> object:
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            for name, one in limited.items():
                _check(name, bound.arguments[name], one)
            return function(*bound.args, **bound.kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined] # for `inspect`
        call.__doc__ = _documented(function.__doc__, declared)
        return cast("_Function", reads_arguments(**choices)(call))

    return decorate


def _check(name: str, value: object, option: Option) -> None:
    """Raise InvalidRequest for a number below its minimum, or a word that is not allowed."""
    if value is None:
        return
    least, words = option.least, option.choices
    if least is not None and cast("int", value) < least:
        raise InvalidRequest(f"{name} is {value}; give {least} or more")
    if words and isinstance(words, tuple) and value not in words:
        raise InvalidChoice(f"{name} is {value!r:.60}; give one of {', '.join(words)}")


def _documented(text: str | None, declared: Mapping[str, tuple[object, Option]]) -> str | None:
    """Return a docstring in which the declared options replace the line `**options`.

    The indentation of the source is removed, as Python 3.13 does.
    """
    if text is None:
        return None
    lines = [f"{name}: {one.keyword or one.text}" for name, (_, one) in declared.items()]
    before, mark, after = inspect.cleandoc(text).partition("\n    **options: ")
    if not mark:
        return before
    return "\n    ".join([before, *lines]) + "".join(after.partition("\n")[1:])
