"""Options of `compact`."""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from tidelog.jobs.options import Option
from tidelog.spark.parts import NOBODY, Listener


class CompactOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.compact`; keywords with flags are also command options."""

    if_due: Annotated[
        bool,
        Option(
            "Compact only partitions that are due by their topics' settings. Default: compact all"
            " finished segments.",
            "--if-due",
            default=False,
        ),
    ]
    roll: Annotated[
        bool,
        Option(
            "Roll the active segments first, so that their records are compacted, too.",
            "--roll",
            default=False,
        ),
    ]
    accept_lost_times: Annotated[
        bool,
        Option(
            "Also compact segments whose append times are damaged or lost; these append times"
            " become unknown.",
            "--accept-lost-times",
            default=False,
        ),
    ]
    part_bytes: Annotated[
        int,
        Option(
            "Approximate number of log bytes that a task rewrites.",
            "--part-bytes",
            default=1 << 30,
            metavar="N",
            least=1,
        ),
    ]
    dedupe_buffer_bytes: Annotated[
        int,
        Option(
            "Memory in bytes for a task's map of keys. If the keys don't fit, the task needs"
            " several passes.",
            default=128 << 20,
        ),
    ]
    store: Annotated[
        Mapping[str, str] | None,
        Option(
            "A setting of the object stores of tiers; repeatable. Default: the environment's.",
            "--store-option",
            keyword="Settings of the object stores of tiers; all workers must reach these stores.",
            metavar="KEY=VALUE",
        ),
    ]
    listener: Annotated[Listener, Option("Receives progress reports.", default=NOBODY)]
