"""Options of `failover`."""

from collections.abc import Sequence
from typing import Annotated, Final, Required, TypedDict

from tidelog.jobs.options import Option
from tidelog.timespec import TIME_HELP

# Value of `max_latency`: measure the largest latency.
MEASURED: Final = "measured"


class FailoverOptions(TypedDict, total=False):
    """Options of `tidelog failover` about the plan; texts as people write them."""

    group: Required[Annotated[str, Option("The consumer group.", "--group -g", metavar="GROUP")]]
    topics: Annotated[
        Sequence[str], Option("All if left out.", "--topic -t", default=(), metavar="T")
    ]
    at: Annotated[
        str | None,
        Option(
            f"It had consumed what A took before this, whatever it committed. {TIME_HELP}.",
            "--at",
            metavar="TIME",
        ),
    ]
    max_latency: Annotated[
        str,
        Option(
            "From creation to append, at most; or measured at the tails of A and B.",
            "--max-latency",
            MEASURED,
            metavar="TIME",
        ),
    ]
    max_skew: Annotated[
        str,
        Option("So far producers' clocks may be ahead.", "--max-skew", "0s", metavar="TIME"),
    ]
    sample_for: Annotated[
        str, Option("How long to measure.", "--sample-for", "30s", metavar="TIME")
    ]
    sample_records: Annotated[
        int,
        Option(
            "Fewer of a topic and cluster are too few to tell the largest latency.",
            "--sample-records",
            1_000,
            metavar="N",
            least=1,
        ),
    ]
    mapping: Annotated[
        str,
        Option(
            "Whether partition N holds the same keys on both; auto looks at keys.",
            "--mapping",
            "auto",
            choices=("auto", "same", "any"),
        ),
    ]
    offset_map: Annotated[
        str | None,
        Option(
            "What the mirror of A on B wrote down (tidelog spark mirror);"
            " no latency is needed then.",
            "--map",
            metavar="FILE",
        ),
    ]
    look_back: Annotated[
        str | None,
        Option(
            "So far before the start on B --verify looks for records that never reached A.",
            "--look-back",
            metavar="TIME",
        ),
    ]
