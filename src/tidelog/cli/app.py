"""The commands and their options, declared for click; what they do is in the modules they call.

Each command imports its work when it runs, so that `--help` and the others don't pay for it.
"""

import click

import tidelog
from tidelog.cli import (
    app_checks,
    app_cluster,
    app_groups,
    app_ranges,
    app_reopen,
    app_serve,
    app_spark,
    app_tier,
    app_time,
)
from tidelog.cli.choices import (
    CODECS,
    ClockName,
    Encoding,
    Format,
    InputFormat,
    Isolation,
    ReadFormat,
)
from tidelog.cli.cluster_options import Place, place_options
from tidelog.cli.options import (
    TIME_HELP,
    clock_option,
    examples,
    format_option,
    isolation_option,
    one_of,
    topic_argument,
    zone_option,
)
from tidelog.cli.surroundings import Surroundings


@click.group(
    name="tidelog",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "export TIDELOG_DATA=data",
        "tidelog create flights --partitions 4 --config retention.ms=-1",
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York' --clock append",
        "tidelog read flights --from -6h --limit 10",
    ),
)
@click.version_option(tidelog.__version__, prog_name="tidelog")
def app() -> None:
    """A commit log with a memory for time: Kafka's files, two clocks."""


@app.command(
    "topics",
    epilog=examples("tidelog topics --data data", "tidelog topics -b broker:9092 -o json"),
)
@place_options
@format_option
@click.pass_obj
def _topics(surroundings: Surroundings, place: Place, kind: Format) -> None:
    """List the topics of a directory or a cluster."""
    from tidelog.cli import topics

    topics.list_topics(surroundings, place, kind)


@app.command(
    "create",
    epilog=examples(
        "tidelog create flights --partitions 4",
        "tidelog create audit --config retention.ms=-1 --config cleanup.policy=compact",
        "tidelog create flights --partitions 4 --bootstrap broker:9092",
    ),
)
@topic_argument
@place_options
@click.option("--partitions", "-p", type=int, default=1, show_default=True, help="How many.")
@click.option(
    "--config", "-c", "given", multiple=True, metavar="KEY=VALUE", help="A setting; repeatable."
)
@click.pass_obj
def _create(
    surroundings: Surroundings,
    topic: str,
    place: Place,
    partitions: int,
    given: tuple[str, ...],
) -> None:
    """Create a topic, and the directory where it is missing."""
    from tidelog.cli import topics

    topics.create(surroundings, place, topic, partitions=partitions, settings=given)


@app.command("delete", epilog=examples("tidelog delete flights --yes"))
@topic_argument
@place_options
@click.option("--yes", is_flag=True, help="Do it; else only say what would go.")
@click.pass_obj
def _delete(
    surroundings: Surroundings,
    topic: str,
    place: Place,
    yes: bool,
) -> None:
    """Delete a topic and all its records."""
    from tidelog.cli import topics

    topics.delete(surroundings, place, topic, yes=yes)


@app.command(
    "describe",
    epilog=examples("tidelog describe flights", "tidelog describe flights -o json | jq .settings"),
)
@topic_argument
@place_options
@format_option
@zone_option
@click.pass_obj
def _describe(
    surroundings: Surroundings, topic: str, place: Place, kind: Format, zone: str | None
) -> None:
    """Show one topic, its partitions and clocks."""
    from tidelog.cli import describe

    describe.describe(surroundings, place, topic, kind, zone)


@app.command(
    "config",
    epilog=examples(
        "tidelog config flights --all",
        "tidelog config flights --set segment.bytes=104857600 --unset retention.ms",
    ),
)
@topic_argument
@place_options
@click.option(
    "--set", "given", multiple=True, metavar="KEY=VALUE", help="Change a setting; repeatable."
)
@click.option(
    "--unset", "cleared", multiple=True, metavar="KEY", help="Back to the default; repeatable."
)
@click.option("--all", "show_all", is_flag=True, help="Show defaults too.")
@format_option
@click.pass_obj
def _config(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    place: Place,
    given: tuple[str, ...],
    cleared: tuple[str, ...],
    show_all: bool,
    kind: Format,
) -> None:
    """Show a topic's settings, or change them first."""
    from tidelog.cli import topics

    changes = topics.changes_of(given, cleared)
    topics.config(surroundings, place, topic, changes=changes, show_all=show_all, kind=kind)


@app.command(
    "produce",
    epilog=examples(
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog produce flights --from flights.parquet --key tailnum --codec zstd",
        "kcat -C -t flights | tidelog produce flights --from - --format lines",
        "tidelog produce flights --from flights.csv --key tailnum --bootstrap broker:9092",
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
@click.option("--partition", type=int, metavar="N", help="For all records; by key if left out.")
@click.option("--codec", type=click.Choice(CODECS), default=CODECS[0], help="Compression.")
@click.option(
    "--accept-clock", is_flag=True, help="Append although the clock jumped by over an hour."
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
    partition: int | None,
    codec: str,
    accept_clock: bool,
    kind: Format,
    zone: str | None,
) -> None:
    """Append the rows of a file."""
    from tidelog.cli import produce
    from tidelog.cli.inputs import Columns

    options = produce.ProduceOptions(
        source=source,
        format=input_format,
        columns=Columns(key=key, time=time, value=value, headers=headers),
        partition=partition,
        codec=produce.codec_of(codec),
        zone=zone,
        accept_clock=accept_clock,
    )
    produce.produce(surroundings, place, topic, options, kind)


@app.command(
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


@app.command(
    "read",
    epilog=examples(
        "tidelog read flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
        "tidelog read flights --from -1h --clock append --follow",
        "tidelog read flights --from -1h --follow --bootstrap broker:9092",
        "tidelog read flights --offset 100..110 --partition 2 -o json",
        "tidelog read flights --from 2013-02-08..+1d --zone UTC -o arrow > flights.arrows",
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
@one_of(
    "--key-type",
    kind=Encoding,
    default=Encoding.AUTO,
    text="What keys are; auto is text, else base64.",
)
@one_of("--value-type", kind=Encoding, default=Encoding.AUTO, text="What values are.")
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
    key_type: Encoding,
    value_type: Encoding,
    wide: bool,
    zone: str | None,
) -> None:
    """Print records by time and by offset.

    Exactly those in the range, partition by partition, in the order of their offsets.
    """
    from tidelog.cli import read
    from tidelog.cli.read_rows import ReadOptions

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
        key=key_type,
        value=value_type,
        wide=wide,
    )
    read.read(surroundings, place, topic, options)


@app.command(
    "dump",
    epilog=examples(
        "tidelog dump data/flights-0/00000000000000000000.log --deep",
        "tidelog dump data/flights-0 -o json",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--deep", is_flag=True, help="Records, not only their batches.")
@format_option
@zone_option
@click.pass_obj
def _dump(
    surroundings: Surroundings,
    paths: tuple[str, ...],
    deep: bool,
    kind: Format,
    zone: str | None,
) -> int:
    """Print what is in files, and what is damaged.

    Files of a log, or whole directories of a partition. Whatever breaks a rule of its format is
    told on stderr, and the exit code is 2.
    """
    from tidelog.cli import dump

    return dump.dump(surroundings, paths, deep=deep, kind=kind, zone=zone)


for _module in (
    app_checks,
    app_cluster,
    app_groups,
    app_ranges,
    app_reopen,
    app_serve,
    app_spark,
    app_tier,
    app_time,
):
    for _command in _module.COMMANDS:
        app.add_command(_command)
