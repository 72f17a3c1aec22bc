"""Options of `reindex`."""

from enum import StrEnum
from typing import Annotated, TypedDict

from tidelog.jobs.options import Option
from tidelog.spark.parts import NOBODY, Listener


class Mode(StrEnum):
    """Mode of a reindex: build missing and wrong files, or only verify."""

    BUILD = "build"
    VERIFY = "verify"


class ReindexOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.reindex`; keywords with flags are also command options."""

    mode: Annotated[
        Mode | str,
        Option(
            "Only check the files, like `tidelog doctor`. Default: also rebuild wrong and missing"
            " files.",
            "--verify",
            Mode.BUILD,
            keyword="`build`, or `verify`, which writes nothing.",
            choices=Mode,
            sets=Mode.VERIFY,
        ),
    ]
    zone_cache: Annotated[
        str | None,
        Option(
            "Folder for zone maps. Default: the directory of the logs. A directory of another"
            " program (such as Kafka) or in an object store is never changed, so zone maps for such"
            " a directory need this folder.",
            "--zone-cache",
            metavar="DIR",
        ),
    ]
    group_bytes: Annotated[
        int,
        Option(
            "Approximate number of log bytes that a task builds zone maps for.", default=1 << 30
        ),
    ]
    listener: Annotated[Listener, Option("Receives progress reports.", default=NOBODY)]
