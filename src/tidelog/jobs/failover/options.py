"""Options of `failover`."""

from collections.abc import Sequence
from typing import Annotated, Final, Required, TypedDict

from tidelog.jobs.options import Option
from tidelog.timespec import TIME_HELP

# Value of `max_latency` that requests a measurement of the largest latency.
MEASURED: Final = "measured"


class FailoverOptions(TypedDict, total=False):
    """Options of `tidelog failover` for the plan. Times are texts, as on the command line."""

    group: Required[Annotated[str, Option("The consumer group.", "--group -g", metavar="GROUP")]]
    topics: Annotated[
        Sequence[str],
        Option(
            "A topic on A; repeatable. Default: all topics for which the group has commits.",
            "--topic -t",
            default=(),
            metavar="T",
        ),
    ]
    at: Annotated[
        str | None,
        Option(
            "Assume that the group consumed everything appended to A before this time."
            f" {TIME_HELP}. Default: use the group's committed offsets.",
            "--at",
            metavar="TIME",
        ),
    ]
    max_latency: Annotated[
        str,
        Option(
            "Maximum time from a record's creation to its append. `measured`: measure it at the log"
            " ends of A and B.",
            "--max-latency",
            MEASURED,
            metavar="TIME",
        ),
    ]
    max_skew: Annotated[
        str,
        Option("Maximum producer clock skew.", "--max-skew", "0s", metavar="TIME"),
    ]
    sample_for: Annotated[
        str, Option("How long to measure.", "--sample-for", "30s", metavar="TIME")
    ]
    sample_records: Annotated[
        int,
        Option(
            "Minimum number of records for measuring the latency of a topic on a cluster.",
            "--sample-records",
            1_000,
            metavar="N",
            least=1,
        ),
    ]
    mapping: Annotated[
        str,
        Option(
            "Whether partition N has the same keys on A and B; auto checks a sample of keys.",
            "--mapping",
            "auto",
            choices=("auto", "same", "any"),
        ),
    ]
    offset_map: Annotated[
        str | None,
        Option(
            "Offset map of the mirror from A to B (tidelog spark mirror); a latency is measured"
            " only for partitions that have no start in the map. Default: find offsets by time.",
            "--map",
            metavar="FILE",
        ),
    ]
    look_back: Annotated[
        str | None,
        Option(
            "How far before the group's start on B --verify searches for records that are missing"
            " on A. Default: the largest latency plus twice the skew.",
            "--look-back",
            metavar="TIME",
        ),
    ]
