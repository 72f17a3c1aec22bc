"""Options of `lag`."""

from typing import TYPE_CHECKING, Annotated, TypedDict

from tidelog.jobs.options import Option, isolation
from tidelog.spark.parts import NOBODY, Listener
from tidelog.types import Isolation, IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LagOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.lag`; keywords with flags are also command options."""

    data: Annotated[
        str | None,
        Option(
            "Directory of the cluster's broker. Records are read from its files, which is faster"
            " and gives append times. Default: read from the brokers.",
            "--data -d",
            metavar="DIR",
        ),
    ]
    positions: Annotated[
        "DataFrame | None",
        Option(
            "Positions to use instead of the groups' commits, with the columns `group`, `topic`,"
            " `partition` and `offset`."
        ),
    ]
    isolation: Annotated[Isolation, isolation(IsolationLevel.READ_UNCOMMITTED)]
    listener: Annotated[Listener, Option("Receives progress reports.", default=NOBODY)]
