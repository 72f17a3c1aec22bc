"""Options of `audit`, and the kinds of differences (`key_verdicts` determines a key's kind)."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypedDict

from tidelog.jobs.options import Option, isolation
from tidelog.spark.parts import NOBODY, Listener
from tidelog.split_size import JOB_SPLIT_BYTES
from tidelog.timespec import TIME_HELP
from tidelog.types import HOUR_MS, Isolation, IsolationLevel


class Kind(StrEnum):
    """Kind of difference between A and B, or between a key's last record and a group's position."""

    MISSING = "missing"
    EXTRA = "extra"
    REORDERED = "reordered"
    STALE = "stale"
    AHEAD = "ahead"
    CHANGED = "changed"
    DUPLICATED = "duplicated"
    VERSIONS = "versions"
    UNDELIVERED = "undelivered"


# All kinds of differences. A row of differences contains a kind as its index in this tuple.
KINDS: Final = tuple(Kind)


class AuditOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.audit`; keywords with flags are also command options."""

    topics: Annotated[
        str | Sequence[str] | None,
        Option(
            "A topic on A, or a regular expression for whole names; repeatable. Default: all"
            " topics.",
            "--topic",
            keyword="Names of topics on A, or regular expressions for whole names; None: all"
            " topics.",
            metavar="PATTERN",
        ),
    ]
    rename: Annotated[
        Mapping[str, str] | None,
        Option(
            "Name of a topic on B; repeatable. Default: the same name.",
            "--rename",
            keyword="Mapping of a topic's name on A to its name on B, for topics whose names"
            " differ.",
            metavar="TOPIC=NAME",
        ),
    ]
    group: Annotated[
        str | None,
        Option(
            "List keys whose last record this consumer group has not read. Default: no group.",
            "--group",
            keyword="Consumer group of B, or of A if there is no B. With a group, the audit also"
            " lists keys whose last record the group has not read.",
            metavar="G",
        ),
    ]
    start: Annotated[
        int | str | None,
        Option(
            f"Start by record timestamp (inclusive), or a range FROM..TO. {TIME_HELP}. Default: no"
            " limit.",
            "--from",
            keyword="Start by record timestamp, inclusive, in ms or as text.",
            metavar="TIME",
        ),
    ]
    end: Annotated[
        int | str | None,
        Option(
            "End by record timestamp (exclusive). Default: no limit.",
            "--to",
            keyword="End by record timestamp, exclusive, in ms or as text.",
            metavar="TIME",
        ),
    ]
    offset_map: Annotated[
        str | None,
        Option(
            "Offset map of the mirror from A to B: compare only records that the mirror has copied."
            " Default: compare all records.",
            "--map",
            keyword="Offset map of the mirror from A to B. With a map, the audit compares only"
            " records that the mirror has copied.",
            metavar="FILE",
        ),
    ]
    state: Annotated[
        str | None,
        Option(
            "Folder that stores the results, so that the next audit reads only new records."
            " Default: read all records.",
            "--state",
            keyword="Folder, shared by all workers, that stores the results, so that the next audit"
            " of the same places reads only new records. None: a temporary folder; all workers must"
            " then run on this machine.",
            metavar="FOLDER",
        ),
    ]
    isolation: Annotated[Isolation, isolation(IsolationLevel.READ_COMMITTED)]
    history: Annotated[
        bool | None,
        Option(
            "Compare all records of each key, not only its last record. Default: yes for a topic"
            " that is not compacted, unless only one of the two sides overwrites create times.",
            "--history/--no-history",
        ),
    ]
    ignore: Annotated[
        Iterable[Kind | str],
        Option(
            "A kind of difference to ignore; repeatable. One of missing, extra, reordered, stale,"
            " ahead, changed, duplicated, versions, undelivered. Default: none.",
            "--ignore",
            (),
            choices=Kind,
            metavar="KIND",
        ),
    ]
    span_ms: Annotated[
        int,
        Option(
            "Length in ms of a span of create time; the result compares A and B span by span.",
            default=HOUR_MS,
            least=1,
        ),
    ]
    keys_max: Annotated[
        int,
        Option(
            "Maximum number of keys listed for each kind of difference in each topic. The counts"
            " include all keys that differ.",
            "--keys",
            10_000,
            metavar="N",
            least=1,
        ),
    ]
    split_bytes: Annotated[
        int,
        Option(
            "Approximate maximum number of log bytes that a task reads.", default=JOB_SPLIT_BYTES
        ),
    ]
    listener: Annotated[Listener, Option("Receives progress reports.", default=NOBODY)]
