"""Options of `mirror`, and the description of a finished batch.

A field of `MirrorOptions` declares an option for the function, the command and docs/jobs.md. A new
option may also need a place in `order=` of `cli/jobs/mirror.py` (its position in the help), in
`MirrorPlan.question` of `plan.py` (a restart must have the same value), and in `plain` of `run.py`
(the value can't be sent to another process). See CONTRIBUTING.md ("A job").
"""

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Required, TypeAlias, TypedDict

from tidelog.env import Env
from tidelog.jobs.chunks import Transform
from tidelog.jobs.offset_map import Partitioning
from tidelog.jobs.options import FORCE, SINK, Option, isolation
from tidelog.lazy_dataclass import dataclass

# Placeholder in a target topic's name. It stands for the name of the source topic.
TOPIC_WORD: Final = "{topic}"


class Settings(StrEnum):
    """Handling of settings whose values differ between a topic and its copy."""

    REPORT = "report"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A finished batch; argument of the function in the option `watch`.

    Attributes:
        batch_id: Number of the batch.
        records: Number of records that the batch has written to the target.
        was_done: Whether an attempt before a restart had already written the whole batch.
        at_ms: Time in ms at which the batch was finished.
        elapsed_ms: Duration of the batch's write in ms.
        notes: One line for each new topic, new partition or changed setting that was found before
            the batch.
    """

    batch_id: int
    records: int
    was_done: bool
    at_ms: int
    elapsed_ms: int
    notes: tuple[str, ...] = ()


Watcher: TypeAlias = Callable[[BatchDone], None]


class MirrorOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.mirror`; keywords with flags are also command options."""

    checkpoint: Required[
        Annotated[
            str,
            Option(
                "Folder for the offset map, and for the state with which a restart continues. No"
                " other mirror may use it.",
                "--checkpoint",
                keyword="Folder on the driver's machine for `offsets.map`, and for the state with"
                " which a restart continues.",
                metavar="FOLDER",
            ),
        ]
    ]
    partitions: Annotated[
        str,
        Option(
            "Partition of a record at the target. kept: the same number as at the source; key:"
            " chosen by the key.",
            "--partitions",
            Partitioning.KEPT,
            keyword="Partition of a record at the target. `kept`: the same number as at the source;"
            " `key`: chosen by the key; `any`: the number in the transform's column"
            " `targetPartition`.",
            choices=("kept", "key"),
        ),
    ]
    start: Annotated[
        str,
        Option(
            "Where a new mirror begins.",
            "--start",
            "earliest",
            keyword="Start offsets of a new mirror: `earliest` or `latest`.",
            choices=("earliest", "latest"),
        ),
    ]
    isolation: Annotated[
        str,
        isolation(
            "read_committed",
            "read_uncommitted copies records of open and aborted transactions, too.",
        ),
    ]
    continuous: Annotated[
        bool,
        Option(
            "Continue until stopped. Default: copy the existing records.",
            "--continuous",
            default=False,
            keyword="True: copy new records until `stopped` is set. False: copy the records that"
            " exist when the mirror starts.",
        ),
    ]
    stopped: Annotated[
        threading.Event | None, Option("Event that ends a continuous mirror when it is set.")
    ]
    batch_records: Annotated[
        int,
        Option(
            "Maximum number of records of each source in a batch.",
            "--batch-records",
            1_000_000,
            metavar="N",
            least=1,
        ),
    ]
    trigger_ms: Annotated[
        int,
        Option(
            "Minimum time in ms between the starts of two batches, with --continuous.",
            "--trigger-ms",
            1_000,
            metavar="N",
            least=0,
        ),
    ]
    create: Annotated[
        bool,
        Option(
            "Create missing topics, with the settings of the source, and missing partitions."
            " Default: they must exist.",
            "--create",
            default=False,
        ),
    ]
    force: Annotated[bool, FORCE]
    pattern: Annotated[
        str | None,
        Option(
            "Also copy topics whose whole name matches this regular expression, including topics"
            " that are created later. Default: only the named topics.",
            "--pattern",
            metavar="REGEX",
        ),
    ]
    name: Annotated[
        str,
        Option(
            "Name at the target of a topic that --pattern matches; {topic} stands for the topic's"
            " own name. Default: {topic}.",
            "--name",
            TOPIC_WORD,
            metavar="NAME",
            shows_default=False,
        ),
    ]
    settings: Annotated[
        str,
        Option(
            "If settings of a topic and its copy differ: report the differences, or sync (give the"
            " copy the topic's settings).",
            "--settings",
            Settings.REPORT,
            choices=Settings,
        ),
    ]
    transform: Annotated[
        Transform | None,
        Option(
            "Function that converts the rows between read and write; it must keep the columns"
            " `source`, `topic`, `partition` and `offset`."
        ),
    ]
    watch: Annotated[Watcher | None, Option("Function that is called after each batch.")]
    source_options: Annotated[
        Mapping[str, str] | None,
        Option("More options of the sources, such as `kafka.security.protocol`."),
    ]
    sink_options: Annotated[Mapping[str, str] | None, SINK]
    env: Annotated[
        Env | None,
        Option(
            "File system and clock that the driver uses; None: the file system and clock of"
            " its machine."
        ),
    ]
