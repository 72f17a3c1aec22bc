"""The commands that run on Spark, declared for click: the group `tidelog spark`.

A command's module adds it here: `COMMANDS` is all that the group has.
"""

from typing import Final

import click

from tidelog.cli.options import examples

_JOBS: Final[tuple[click.Command, ...]] = ()


@click.group(
    "spark",
    epilog=examples(
        "tidelog spark replay data flights --from -6h --to standby --to-topic flights",
        "tidelog spark bootstrap flights.parquet flights --to data --key tailnum --time departure",
    ),
)
def spark() -> None:
    """Jobs on Spark, for more than one machine should read.

    A place is a directory of topics (a path, or a URL such as s3://bucket/logs) or a cluster,
    kafka://HOST:PORT. Without --master, Spark runs here, on all cores.
    """


for _job in _JOBS:
    spark.add_command(_job)

COMMANDS: Final[tuple[click.Command, ...]] = (spark,)
