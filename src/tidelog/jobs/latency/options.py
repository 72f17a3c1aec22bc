"""Options of `latency`."""

from collections.abc import Sequence
from typing import Annotated, TypedDict

from tidelog.jobs.options import Option
from tidelog.spark.parts import NOBODY, Listener
from tidelog.split_size import JOB_SPLIT_BYTES
from tidelog.storage.clocks.latency import DELAYS_MS
from tidelog.timespec import TIME_HELP, parse_duration
from tidelog.types import NS_PER_MS


class LatencyOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.latency`; keywords with flags are also command options."""

    start: Annotated[
        int | str | None,
        Option(
            f"Start by append time (inclusive), or a range A..B. {TIME_HELP}. Default: no limit.",
            "--from",
            keyword="Start by append time, in ms or as text, extended to the start of its hour.",
            metavar="TIME",
        ),
    ]
    end: Annotated[
        int | str | None,
        Option(
            "End by append time (exclusive). Default: no limit.",
            "--to",
            keyword="End by append time, in ms or as text, extended to the end of its hour.",
            metavar="TIME",
        ),
    ]
    delays_ms: Annotated[
        Sequence[int],
        Option(
            "A watermark delay; repeatable. Default: 0s, 1s, 10s, 1m, 10m, 1h, 1d.",
            "--delay",
            DELAYS_MS,
            keyword="Watermark delays in ms; the records that each delay would drop are counted,"
            " with a watermark per partition.",
            metavar="TIME",
            read=lambda text: parse_duration(text) // NS_PER_MS,
        ),
    ]
    split_bytes: Annotated[
        int,
        Option(
            "Approximate maximum number of log bytes that a task reads.", default=JOB_SPLIT_BYTES
        ),
    ]
    listener: Annotated[Listener, Option("Receives progress reports.", default=NOBODY)]
