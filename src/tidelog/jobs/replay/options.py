"""Options of `replay`."""

from enum import StrEnum
from typing import Annotated, Required, TypedDict

from tidelog.jobs.chunks import Rate, Transform
from tidelog.jobs.options import CLOCK, CONFIG, CREATE, FORCE, SINK, Option, isolation
from tidelog.spark.places import Place
from tidelog.timespec import TIME_HELP


class ReplayPartitions(StrEnum):
    """Rule that chooses a record's partition at the target."""

    KEEP = "keep"
    KEY = "key"


class ReplayOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.replay`; keywords with flags are also command options."""

    to: Required[
        Annotated[
            Place | str,
            Option(
                "Target: a directory of topics, kafka://HOST:PORT, parquet:PATH, or console.",
                "--to",
                keyword="Target of the records: a place, `parquet:PATH`, or `console`.",
                metavar="PLACE",
            ),
        ]
    ]
    to_topic: Annotated[
        str | None,
        Option(
            "Name of the topic at the target. Default: the same name.",
            "--to-topic",
            keyword="Name of the topic at the target; None: the source's name. The topic must exist"
            " unless `create` is given.",
            metavar="TOPIC",
        ),
    ]
    start: Annotated[
        int | str | None,
        Option(
            f"Start time (inclusive), or a range A..B. {TIME_HELP}. Default: no limit.",
            "--from",
            keyword="Start time, inclusive, in ms or in the grammar of docs/time.md; None: no"
            " limit.",
            metavar="TIME",
        ),
    ]
    end: Annotated[
        int | str | None,
        Option(
            "End time (exclusive). Default: no limit.",
            "--until",
            keyword="End time, exclusive; None: all records that exist when the replay starts.",
            metavar="TIME",
        ),
    ]
    clock: Annotated[str, CLOCK]
    isolation: Annotated[
        str,
        isolation(
            "read_committed",
            "read_uncommitted replays records of open and aborted transactions, too.",
        ),
    ]
    partitions: Annotated[
        str | None,
        Option(
            "keep: partitions keep their numbers; key: partition by key. Default: keep if source"
            " and target have the same number of partitions, else key.",
            "--partitions",
            keyword="`keep`: partitions keep their numbers; `key`: partition by key; None: keep if"
            " the target has as many partitions as the source, else by key.",
            choices=ReplayPartitions,
        ),
    ]
    rate: Annotated[
        Rate | str | None,
        Option(
            "Maximum rate: 5000/s for records, 10MB/s for bytes. Default: no limit.",
            "--rate",
            metavar="N/s",
        ),
    ]
    progress: Annotated[
        str | None,
        Option(
            "File that stores the progress, so that the same command continues where it stopped."
            " Default: the progress is not stored.",
            "--progress",
            keyword="Local file of the driver that makes the replay resumable: the same call"
            " continues exactly where it stopped, even after a kill.",
            metavar="FILE",
        ),
    ]
    transform: Annotated[
        Transform | None,
        Option(
            "Function that converts the rows of each chunk between read and write. Without `rate`"
            " and `progress`, a replay to a directory or to Parquet has only one chunk."
        ),
    ]
    force: Annotated[bool, FORCE]
    sink: Annotated[dict[str, str] | None, SINK]
    create: Annotated[int | None, CREATE]
    config: Annotated[dict[str, str] | None, CONFIG]
