"""Options of `bootstrap`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Required, TypedDict

from tidelog.jobs.chunks import Transform
from tidelog.jobs.options import CONFIG, CREATE, FORCE, SINK, Option
from tidelog.spark.places import Place


class Order(StrEnum):
    """Order of the records in a partition."""

    TIME = "time"
    KEY = "key"
    NONE = "none"


class BootstrapOptions(TypedDict, total=False):
    """Keywords of `tidelog.spark.bootstrap`; keywords with flags are also command options."""

    to: Required[Annotated[Place | str, Option("The directory of topics.", "--to", metavar="DIR")]]
    key: Annotated[
        str | None,
        Option(
            "Column of the key. Default: no key.",
            "--key",
            keyword="Column of the key; records without a key are partitioned by a hash of their"
            " value.",
            metavar="COL",
        ),
    ]
    time: Annotated[
        str | None,
        Option(
            "Column of the create time. Default: the time of the commit.",
            "--time",
            keyword="Column of the create time: timestamp, date, whole ms, or text for SQL's cast."
            " A row whose time is null gets the time of the commit.",
            metavar="COL",
        ),
    ]
    value: Annotated[
        str | None,
        Option("Column of the value. Default: the row as JSON.", "--value", metavar="COL"),
    ]
    headers: Annotated[
        str | None,
        Option(
            "Column of headers: a map, or an array of (key, value). Default: no headers.",
            "--headers",
            keyword="Column of headers: a map, or an array of (key, value).",
            metavar="COL",
        ),
    ]
    partition: Annotated[
        str | None,
        Option(
            "Column of the partition. Default: by key.",
            "--partition",
            keyword="Column of the partition's number; None: murmur2 of the key.",
            metavar="COL",
        ),
    ]
    order: Annotated[
        str | None,
        Option(
            "Order of records in a partition. Default: time with --time, else none.",
            "--order",
            keyword="Order of the records in a partition. `time`: by create time; `key`: by key,"
            " then by create time; `none`: the order in which tasks read the rows, without a"
            " shuffle. None: `time` if there is a time column, else `none`.",
            choices=Order,
        ),
    ]
    job_id: Annotated[
        str | None,
        Option(
            "Name of the load; if a load with this name was committed before, nothing is loaded."
            " Default: derived from table, topic and columns.",
            "--id",
            keyword="Name of the load, which makes the call safe to repeat: if a load with this"
            " name was committed before, nothing is loaded.",
            metavar="NAME",
        ),
    ]
    create: Annotated[int | None, CREATE]
    config: Annotated[Mapping[str, str] | None, CONFIG]
    tasks: Annotated[
        int | None,
        Option(
            "Number of tasks that build segments. Default: chosen by size.",
            "--tasks",
            metavar="N",
            least=1,
        ),
    ]
    transform: Annotated[
        Transform | None,
        Option("Function that converts the table's rows before they become records."),
    ]
    counts: Annotated[
        bool,
        Option(
            "Read all keys and times before writing, for exact checks. Default: --count.",
            "--count/--no-count",
            default=True,
            keyword="Read key and time of the whole table before writing, for exact checks; this"
            " reads the table one more time.",
        ),
    ]
    force: Annotated[bool, FORCE]
    sink: Annotated[Mapping[str, str] | None, SINK]
