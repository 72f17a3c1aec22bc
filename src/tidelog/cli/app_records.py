"""The commands that write, find and read records, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.arguments import Inexact
from tidelog.cli.options import (
    CODECS,
    TIME_HELP,
    Encoding,
    Format,
    InputFormat,
    Isolation,
    ReadFormat,
    clock_option,
    examples,
    format_option,
    headers_as_option,
    inexact_option,
    isolation_option,
    key_as_option,
    one_of,
    refuse_typed,
    topic_argument,
    value_as_option,
    zone_option,
)
from tidelog.cli.places import Place, place_options
from tidelog.cli.surroundings import Surroundings
from tidelog.types import ClockName


@click.command(
    "produce",
    epilog=examples(
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog produce flights --from flights.parquet --key tailnum --codec zstd",
        "kcat -C -t flights | tidelog produce flights --from - --format lines",
        "tidelog produce flights --from flights.csv --key tailnum --bootstrap broker:9092",
        "tidelog produce flights --from flights.csv --key tailnum --once flights-2013 --check",
    ),
)
@topic_argument
@click.option("--from", "source", required=True, metavar="FILE", help="A file, or - for stdin.")
@place_options
@one_of(
    "--format",
    "-f",
    "input_format",
    kind=InputFormat,
    default=None,
    text="How the file is read; by its name where left out.",
)
@click.option("--key", metavar="COL", help="Column of the key.")
@click.option("--time", metavar="COL", help=f"Column of the create time: {TIME_HELP}.")
@click.option("--value", metavar="COL", help="Column of the value; the row as JSON if left out.")
@click.option("--headers", metavar="COL", help="Column of headers, an object of names and values.")
@key_as_option
@value_as_option
@headers_as_option
@click.option("--partition", type=int, metavar="N", help="For all records; by key if left out.")
@click.option("--codec", type=click.Choice(CODECS), default=CODECS[0], help="Compression.")
@click.option(
    "--accept-clock", is_flag=True, help="Append although the clock jumped by over an hour."
)
@click.option("--check", is_flag=True, help="Read the whole input before anything is appended.")
@click.option(
    "--once",
    metavar="NAME",
    help="Name of the source: its rows are appended once, however often this is run.",
)
@one_of(
    "--output",
    "-o",
    "kind",
    kind=Format,
    default=Format.TABLE,
    text="How the result is written.",
)
@zone_option
@click.pass_obj
def _produce(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    source: str,
    place: Place,
    input_format: InputFormat | None,
    key: str | None,
    time: str | None,
    value: str | None,
    headers: str | None,
    key_as: Encoding,
    value_as: Encoding,
    headers_as: Encoding,
    partition: int | None,
    codec: str,
    accept_clock: bool,
    check: bool,
    once: str | None,
    kind: Format,
    zone: str | None,
) -> None:
    """Append the rows of a file."""
    from tidelog.cli import produce
    from tidelog.cli.inputs import Columns

    options = produce.ProduceOptions(
        source=source,
        format=input_format,
        columns=Columns(
            key=key,
            time=time,
            value=value,
            headers=headers,
            key_as=key_as,
            value_as=value_as,
            headers_as=headers_as,
        ),
        partition=partition,
        codec=produce.codec_of(codec),
        zone=zone,
        accept_clock=accept_clock,
        check=check,
        once=once,
    )
    produce.produce(surroundings, place, topic, options, kind)


@click.command(
    "offsets",
    epilog=examples(
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York'",
        "tidelog offsets flights --at -6h --clock append -o json",
        "tidelog offsets flights --at latest --isolation read_committed",
        "tidelog offsets flights --at -6h --bootstrap broker:9092",
    ),
)
@topic_argument
@click.option("--at", required=True, metavar="TIME", help=f"{TIME_HELP}; or earliest, latest, max.")
@place_options
@clock_option
@isolation_option
@format_option
@zone_option
@click.pass_obj
def _offsets(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    at: str,
    place: Place,
    clock: ClockName,
    isolation: Isolation,
    kind: Format,
    zone: str | None,
) -> None:
    """Find offsets by time, in each partition."""
    from tidelog.cli import offsets

    question = offsets.Question(at=at, clock=clock, isolation=isolation.level, zone=zone)
    offsets.find_offsets(surroundings, place, topic, question, kind)


@click.command(
    "read",
    epilog=examples(
        "tidelog read flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
        "tidelog read flights --from -1h --clock append --follow",
        "tidelog read flights --from -1h --follow --bootstrap broker:9092",
        "tidelog read flights --offset 100..110 --partition 2 -o json",
        "tidelog read flights --from 2013-02-08..+1d --zone UTC -o arrow > flights.arrow",
        "tidelog read flights --table --at '2013-02-08 12:00 America/New_York'",
    ),
)
@topic_argument
@place_options
@click.option("--from", "start", metavar="TIME", help=f"First time, or a range A..B. {TIME_HELP}.")
@click.option("--to", "end", metavar="TIME", help="Up to and without this time.")
@clock_option
@click.option("--offset", metavar="A..B", help="Offsets from A up to and without B.")
@click.option("--partition", type=int, metavar="N", help="This partition alone.")
@isolation_option
@click.option("--follow", is_flag=True, help="Go on with what is appended; Ctrl-C ends it.")
@click.option("--limit", "-n", type=click.IntRange(min=0), metavar="N", help="So many records.")
@one_of(
    "--format",
    "-o",
    "kind",
    kind=ReadFormat,
    default=ReadFormat.TABLE,
    text="How records are written.",
)
@key_as_option
@value_as_option
@headers_as_option
@click.option("--table", "is_table", is_flag=True, help="The last record of each key alone.")
@click.option("--at", metavar="TIME", help=f"With --table: as of this time. {TIME_HELP}.")
@inexact_option
@click.option("--wide", is_flag=True, help="Tables with whole values.")
@zone_option
@click.pass_obj
def _read(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    place: Place,
    start: str | None,
    end: str | None,
    clock: ClockName,
    offset: str | None,
    partition: int | None,
    isolation: Isolation,
    follow: bool,
    limit: int | None,
    kind: ReadFormat,
    key_as: Encoding,
    value_as: Encoding,
    headers_as: Encoding,
    is_table: bool,
    at: str | None,
    inexact: Inexact,
    wide: bool,
    zone: str | None,
) -> None:
    """Print records by time and by offset.

    Exactly those in the range, partition by partition, in the order of their offsets. With --table
    the record that stands for each key, of committed records up to and with a time.
    """
    from tidelog.cli import read
    from tidelog.cli.output import ReadOptions

    options = ReadOptions(
        start=start,
        end=end,
        clock=clock,
        offsets=offset,
        partition=partition,
        isolation=isolation.level,
        follow=follow,
        limit=limit,
        format=kind,
        zone=zone,
        key=key_as,
        value=value_as,
        headers=headers_as,
        wide=wide,
    )
    if is_table:
        from tidelog.cli import table

        refuse_typed(("isolation",), "--table shows committed records alone")
        table.read_table(surroundings, place, topic, options, at, inexact)
        return
    refuse_typed(("at", "inexact"), "it goes with --table")
    read.read(surroundings, place, topic, options)


@click.command(
    "dump",
    epilog=examples(
        "tidelog dump data/flights-0/00000000000000000000.log --deep",
        "tidelog dump data/flights-0 -o json",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--deep", is_flag=True, help="Records, not only their batches.")
@key_as_option
@value_as_option
@format_option
@zone_option
@click.pass_obj
def _dump(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    paths: tuple[str, ...],
    deep: bool,
    key_as: Encoding,
    value_as: Encoding,
    kind: Format,
    zone: str | None,
) -> int:
    """Print what is in files, and what is damaged.

    Files of a log, or whole directories of a partition. Whatever breaks a rule of its format is
    told on stderr, and the exit code is 2.
    """
    from tidelog.cli import dump

    if not deep:
        refuse_typed(("key_as", "value_as"), "it goes with --deep")
    shown = dump.Shown(deep=deep, key=key_as, value=value_as, zone=zone)
    return dump.dump(surroundings, paths, shown, kind)


COMMANDS: Final[tuple[click.Command, ...]] = (_produce, _offsets, _read, _dump)
