"""The commands and their options, declared for typer; what they do is in the modules they call.

Imported by `main` alone, and the only module here that needs typer. Each command imports its work
when it runs, so that `--help` and the others don't pay for it.
"""

from typing import Annotated, Final

import typer  # noqa: TID253 - reached only from `main`, which every command goes through

from tidelog.cli.choices import Encoding, Format, InputFormat, Isolation, ReadFormat
from tidelog.cli.surroundings import Surroundings
from tidelog.types import ClockName, Codec

_EXAMPLES: Final = "\b\nExamples:\n"


def _examples(*lines: str) -> str:
    """Lines at the end of a command's help, kept as they are (the backspace says so)."""
    return _EXAMPLES + "\n".join(f"  {line}" for line in lines)


_TIME_HELP: Final = (
    "ISO 8601 with a zone (2013-02-08T12:00Z, '2013-02-08 12:00 America/New_York'), epoch ms,"
    " now, or back from now (-6h)"
)

app: Final = typer.Typer(
    name="tidelog",
    help="A commit log with a memory for time: Kafka's files, two clocks.",
    epilog=_examples(
        "export TIDELOG_DATA=data",
        "tidelog create flights --partitions 4 --config retention.ms=-1",
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York' --clock append",
        "tidelog read flights --from -6h --limit 10",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.", show_default=False)]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="DIR", envvar="TIDELOG_DATA", help="The directory of topics."
    ),
]
Output = Annotated[Format, typer.Option("--format", "-o", help="How rows are written.")]
Zone = Annotated[
    str | None,
    typer.Option(
        metavar="ZONE", help="Of times without one and of times printed, e.g. America/New_York."
    ),
]
Clock = Annotated[
    ClockName,
    typer.Option(help="record: a record's timestamp; append: when the log took it."),
]
AcceptClock = Annotated[
    bool,
    typer.Option("--accept-clock", help="Append although the clock jumped by more than an hour."),
]
Seen = Annotated[
    Isolation,
    typer.Option("--isolation", help="read_committed leaves out open and aborted transactions."),
]


def _surroundings(context: typer.Context) -> Surroundings:
    found = context.obj
    assert isinstance(found, Surroundings)
    return found


def _show_version(wanted: bool) -> None:
    if wanted:
        import tidelog

        typer.echo(f"tidelog {tidelog.__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command(epilog=_examples("tidelog topics --data data", "tidelog topics -o json"))
def topics(context: typer.Context, data: Data = None, output_format: Output = Format.TABLE) -> None:
    """List the topics of a directory."""
    from tidelog.cli import topics as work

    work.list_topics(_surroundings(context), data, output_format)


@app.command(
    epilog=_examples(
        "tidelog create flights --partitions 4",
        "tidelog create audit --config retention.ms=-1 --config cleanup.policy=compact",
    )
)
def create(
    context: typer.Context,
    topic: Topic,
    data: Data = None,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many.")] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; may be repeated."),
    ] = None,
) -> None:
    """Create a topic, and the directory where it is missing."""
    from tidelog.cli import topics as work

    work.create(_surroundings(context), data, topic, partitions=partitions, settings=config or [])


@app.command(epilog=_examples("tidelog delete flights --yes"))
def delete(
    context: typer.Context,
    topic: Topic,
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else only say what would go.")] = False,
) -> None:
    """Delete a topic and all its records."""
    from tidelog.cli import topics as work

    work.delete(_surroundings(context), data, topic, yes=yes)


@app.command(
    epilog=_examples("tidelog describe flights", "tidelog describe flights -o json | jq .settings")
)
def describe(
    context: typer.Context,
    topic: Topic,
    data: Data = None,
    output_format: Output = Format.TABLE,
    zone: Zone = None,
) -> None:
    """Show one topic, its partitions and clocks."""
    from tidelog.cli import describe as work

    work.describe(_surroundings(context), data, topic, output_format, zone)


@app.command(
    epilog=_examples(
        "tidelog config flights --all",
        "tidelog config flights --set segment.bytes=104857600 --unset retention.ms",
    )
)
def config(  # noqa: PLR0913 - one parameter for each option
    context: typer.Context,
    topic: Topic,
    data: Data = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    cleared: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Back to the default; may be repeated."),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show defaults too.")] = False,
    output_format: Output = Format.TABLE,
) -> None:
    """Show a topic's settings, or change them first."""
    from tidelog.cli import topics as work

    changes = work.changes_of(given or [], cleared or [])
    work.config(
        _surroundings(context), data, topic, changes=changes, show_all=show_all, kind=output_format
    )


@app.command(
    epilog=_examples(
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog produce flights --from flights.parquet --key tailnum --codec zstd",
        "kcat -C -t flights | tidelog produce flights --from - --format lines",
    )
)
def produce(  # noqa: PLR0913 - one parameter for each option
    context: typer.Context,
    topic: Topic,
    source: Annotated[str, typer.Option("--from", metavar="FILE", help="A file, or - for stdin.")],
    data: Data = None,
    input_format: Annotated[
        InputFormat | None,
        typer.Option("--format", "-f", help="How the file is read; by its name where left out."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Column of the key.")] = None,
    time: Annotated[
        str | None, typer.Option(help=f"Column of the create time: {_TIME_HELP}.")
    ] = None,
    value: Annotated[
        str | None, typer.Option(help="Column of the value; the whole row as JSON if left out.")
    ] = None,
    headers: Annotated[
        str | None, typer.Option(help="Column of the headers, an object of names and values.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="Partition for all records; by key if left out.")
    ] = None,
    codec: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    accept_clock: AcceptClock = False,
    output_format: Annotated[
        Format, typer.Option("--output", "-o", help="How the result is written.")
    ] = Format.TABLE,
    zone: Zone = None,
) -> None:
    """Append the rows of a file."""
    from tidelog.cli import produce as work
    from tidelog.cli.inputs import Columns

    options = work.ProduceOptions(
        source=source,
        format=input_format,
        columns=Columns(key=key, time=time, value=value, headers=headers),
        partition=partition,
        codec=_codec(codec),
        zone=zone,
        accept_clock=accept_clock,
    )
    work.produce(_surroundings(context), data, topic, options, output_format)


def _codec(name: str) -> Codec:
    names = [codec.config_name for codec in Codec]
    if name not in names:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}")
    return Codec(names.index(name))


@app.command(
    epilog=_examples(
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York'",
        "tidelog offsets flights --at -6h --clock append -o json",
        "tidelog offsets flights --at latest --isolation read_committed",
    )
)
def offsets(  # noqa: PLR0913 - one parameter for each option
    context: typer.Context,
    topic: Topic,
    at: Annotated[str, typer.Option(help=f"{_TIME_HELP}; or earliest, latest, max.")],
    data: Data = None,
    clock: Clock = ClockName.RECORD,
    isolation: Seen = Isolation.READ_UNCOMMITTED,
    output_format: Output = Format.TABLE,
    zone: Zone = None,
) -> None:
    """Find offsets by time, in each partition."""
    from tidelog.cli import offsets as work

    work.find_offsets(
        _surroundings(context),
        data,
        topic,
        at,
        clock=clock,
        isolation=isolation.level,
        kind=output_format,
        zone=zone,
    )


@app.command(
    epilog=_examples(
        "tidelog read flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
        "tidelog read flights --from -1h --clock append --follow",
        "tidelog read flights --offset 100..110 --partition 2 -o json",
        "tidelog read flights --from 2013-02-08..+1d --zone UTC -o arrow > flights.arrows",
    )
)
def read(  # noqa: PLR0913 - one parameter for each option
    context: typer.Context,
    topic: Topic,
    data: Data = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"First time, or a range A..B. {_TIME_HELP}."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Up to and without this time.")
    ] = None,
    clock: Clock = ClockName.RECORD,
    offset: Annotated[
        str | None, typer.Option(metavar="A..B", help="Offsets from A up to and without B.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="This partition alone.")] = None,
    isolation: Seen = Isolation.READ_UNCOMMITTED,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is appended; Ctrl-C ends it.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="So many records.")] = None,
    output_format: Annotated[
        ReadFormat, typer.Option("--format", "-o", help="How records are written.")
    ] = ReadFormat.TABLE,
    key_type: Annotated[
        Encoding, typer.Option(help="What keys are; auto is text, else base64.")
    ] = Encoding.AUTO,
    value_type: Annotated[Encoding, typer.Option(help="What values are.")] = Encoding.AUTO,
    wide: Annotated[bool, typer.Option("--wide", help="Tables with whole values.")] = False,
    zone: Zone = None,
) -> None:
    """Print records by time and by offset.

    Exactly those in the range, partition by partition, in the order of their offsets.
    """
    from tidelog.cli import read as work

    options = work.ReadOptions(
        start=start,
        end=end,
        clock=clock,
        offsets=offset,
        partition=partition,
        isolation=isolation.level,
        follow=follow,
        limit=limit,
        format=output_format,
        zone=zone,
        key=key_type,
        value=value_type,
        wide=wide,
    )
    work.read(_surroundings(context), data, topic, options)


@app.command(
    epilog=_examples(
        "tidelog dump data/flights-0/00000000000000000000.log --deep",
        "tidelog dump data/flights-0 -o json",
    )
)
def dump(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files of a log, or a partition's directory."),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Records, not only their batches.")] = False,
    output_format: Output = Format.TABLE,
    zone: Zone = None,
) -> None:
    """Print what is in files, and what is damaged.

    Whatever breaks a rule of its format is told on stderr, and the exit code is 2.
    """
    from tidelog.cli import dump as work

    code = work.dump(_surroundings(context), paths, deep=deep, kind=output_format, zone=zone)
    raise typer.Exit(code)
