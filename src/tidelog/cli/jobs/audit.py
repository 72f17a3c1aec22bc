"""`tidelog audit`: compares two places key by key, prints a table and can write an HTML report."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import click

from tidelog.amounts import bytes_text, plural, rate_text, share_text
from tidelog.cli import output, times
from tidelog.cli.cells import decoder
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
    needs_spark,
    open_session,
    origin,
    read_place,
    report_table,
    save_report,
)
from tidelog.cli.options import (
    Encoding,
    Format,
    SparkAccess,
    a_command_config_option,
    a_store_option,
    argument,
    as_pairs,
    b_command_config_option,
    declared_by,
    examples,
    format_option,
    key_as_option,
    option,
    option_names,
    show_option,
    shown_table,
    spark_options,
    with_job_options,
    zone_option,
)
from tidelog.cli.output import Cell, Columns
from tidelog.cli.surroundings import ExitCode, InvalidInput, Surroundings, describe
from tidelog.errors import TidelogError
from tidelog.jobs.audit.options import AuditOptions, Kind
from tidelog.jobs.audit.results import (
    KIND_TEXTS,
    AuditResults,
    Difference,
    Last,
    TopicFigures,
    audit_verdict,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Items, Report, Section, plot_by_hour
from tidelog.plots import SERIES_MAX
from tidelog.spark.places import Place
from tidelog.types import HOUR_MS, NO_TIMESTAMP

EQUAL: Final = ExitCode.OK
# The exit codes mean the same as those of `cmp` and `diff`, as scripts expect.
DIFFERENT: Final = 1
FAILED: Final = 2

DIFFERENCES: Final = output.columns(
    "topic",
    "kind",
    output.key("key"),
    output.minor(output.time("bucket"), output.number("a_partition")),
    output.number("a_offset"),
    output.minor(
        output.titled(a_create_time=output.time("a_time")),
        output.count("a_records"),
        output.number("b_partition"),
    ),
    output.number("b_offset"),
    output.minor(output.titled(b_create_time=output.time("b_time")), output.count("b_records")),
)
TOPICS: Final = output.columns(
    "topic",
    output.count("a_keys", "b_keys"),
    output.minor(output.count("a_records", "b_records", "a_without_key", "b_without_key")),
    output.minor("without_key_equal", "history"),
    output.minor(output.count("deleted_or_unknown", "superseded")),
    output.count(*(kind.value for kind in Kind)),
)
BUCKETS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.time("bucket"),
    output.minor(output.duration("span_ms")),
    output.count("a_records", "b_records"),
    "equal",
)
CUTS: Final = output.columns("side", "topic", output.number("partition", "start", "end"))
# Maximum number of topics with plots. The topics with the most differences have plots.
_PLOTTED: Final = 4


class AuditShow(StrEnum):
    """Table of an audit to print."""

    TOPICS = "topics"
    DIFFERENCES = "differences"
    BUCKETS = "buckets"
    CUTS = "cuts"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCommand:
    """Options of `tidelog audit`."""

    a: str = argument(metavar="A")
    b: str | None = argument(metavar="[B]", required=False)
    show: AuditShow | None = declared_by(
        show_option(
            AuditShow,
            "topics: one line per topic; differences: keys that differ; buckets: spans of create"
            " time; cuts: the compared offsets.",
        )
    )
    html: str | None = option(
        "--html",
        metavar="FILE",
        help="Also write an HTML page with tables and plots. Default: no page.",
    )
    during: str | None = declared_by(times.during_option)
    command_config: str | None = declared_by(a_command_config_option)
    to_command_config: str | None = declared_by(b_command_config_option)
    store: dict[str, str] = declared_by(a_store_option)
    to_store: dict[str, str] = declared_by(
        click.option(
            "--to-store-option",
            "to_store",
            multiple=True,
            metavar="KEY=VALUE",
            callback=as_pairs,
            help="A setting of B's object store; repeatable. Default: the environment's.",
        )
    )
    spark: SparkAccess = declared_by(spark_options)
    key_as: Encoding = declared_by(key_as_option)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "audit",
    epilog=examples(
        "tidelog audit kafka://east:9092 kafka://west:9092 --topic orders --state /shared/orders",
        "tidelog audit data s3://backup/data --from 2013-02-01Z --to 2013-03-01Z --html audit.html",
        "tidelog audit data standby --topic 'flights.*' -o json",
        "tidelog audit kafka://broker:9092 --group loader --topic orders",
        "tidelog audit kafka://east:9092 data --map mirror/offsets.map",
    ),
)
@with_job_options(
    AuditCommand,
    AuditOptions,
    order="a b topics rename group start end during offset_map state history ignore isolation"
    " keys_max",
)
def audit(surroundings: Surroundings, request: AuditCommand, options: AuditOptions) -> int:
    """Compare two clusters or directories key by key.

    A and B are places: a directory of topics, an object store's URL, or kafka://HOST:PORT. B can
    be left out only with --group: the audit then lists the keys of A whose last record the group
    has not read. Reads every record, except those whose results --state stores. Prints the chance
    that a difference was missed. Runs on Spark.

    Exit code: 0 equal, 1 differences, 2 an error, 3 invalid arguments.
    """
    try:
        audited = _audit(surroundings, request, options)
    except (TidelogError, InvalidInput, OSError) as error:
        code, text, hint = describe(error, option_names(audit))
        if code is ExitCode.USAGE:
            raise  # the exit code for invalid arguments is the same as in other commands
        surroundings.fail(text, hint)
        return FAILED
    return EQUAL if audited.is_equal else DIFFERENT


def _audit(
    surroundings: Surroundings, request: AuditCommand, options: AuditOptions
) -> AuditResults:
    needs_spark()
    from tidelog.jobs.audit.job import measure
    from tidelog.jobs.audit.plan import plan_audit

    a, b = _places(surroundings, request)
    times.fix_range(surroundings, options, request.zone, during=request.during)
    check_before(surroundings, [Use(place) for place in (a, b) if place is not None], request.html)
    options["listener"] = progress = JobProgress(surroundings, "reading", unit="tasks")
    plan = plan_audit(surroundings.env, a, b, **options)
    zone = request.zone
    with open_session(surroundings, request.spark, progress, name="audit", zone=zone) as spark:
        began_ms = surroundings.env.clock.monotonic_ms()
        audited = measure(spark, plan)
        seconds = (surroundings.env.clock.monotonic_ms() - began_ms) / 1000
    _show(surroundings, request, options["group"], audited)
    surroundings.say(took(audited, seconds))
    if request.html is not None:
        places = {"A": request.a} if request.b is None else {"A": request.a, "B": request.b}
        start, end = options["start"], options["end"]
        provenance = origin(surroundings, places, start=start, end=end, zone=zone)
        report = page(request, options["group"], audited)
        save_report(surroundings, request.html, report, provenance)
    return audited


def _show(
    surroundings: Surroundings, request: AuditCommand, group: str | None, audited: AuditResults
) -> None:
    """Print the verdict and the chosen table; JSON and CSV are written even without rows."""
    kind, show = request.kind, shown_table(request.show, AuditShow, request.kind)
    verdict = audit_verdict(audited, request.a, other_side(request, group))
    output.print_verdict(surroundings, verdict, kind)
    columns, rows = table(audited, show, request.key_as)
    if show is AuditShow.TOPICS and kind is Format.TABLE:
        columns, rows = topic_table(audited)
    if rows or kind is not Format.TABLE:
        output.print_rows(surroundings, columns, rows, kind, zone=request.zone)
    if show is AuditShow.TOPICS and not audited.is_equal:
        surroundings.say("--show differences lists the keys")
    for line in notes(audited):
        surroundings.say(line)


def other_side(request: AuditCommand, group: str | None) -> str:
    """Return the name of side B, or the group's name if only A was given."""
    return f"group {group}" if request.b is None else request.b


def topic_table(audited: AuditResults) -> tuple[Columns, list[list[Cell]]]:
    """Return the table of topics for printing, with a column for each kind in `_kinds`."""
    kinds = _kinds(audited)
    columns = output.columns(
        "topic",
        output.count("a_keys", "b_keys", *(kind.value for kind in kinds)),
        output.minor("history", output.count("deleted_or_unknown", "superseded")),
        output.detail(
            output.count("a_records", "b_records", "a_without_key", "b_without_key"),
            "without_key_equal",
        ),
    )
    return columns, [
        [
            one.topic,
            *one.keys,
            *(one.kinds.get(kind, 0) for kind in kinds),
            one.history,
            one.deleted,
            one.superseded,
            *one.records,
            *one.unkeyed,
            one.unkeyed_equal,
        ]
        for one in audited.topics
    ]


def _kinds(audited: AuditResults) -> list[Kind]:
    """Return the kinds of differences that occur in at least one topic."""
    return [kind for kind in Kind if any(one.kinds.get(kind) for one in audited.topics)]


def _places(surroundings: Surroundings, request: AuditCommand) -> tuple[Place, Place | None]:
    a = read_place(
        surroundings, request.a, command_config=request.command_config, store=request.store
    )
    if request.b is None:
        return a, None
    return a, read_place(
        surroundings, request.b, command_config=request.to_command_config, store=request.to_store
    )


def table(
    audited: AuditResults, show: AuditShow, key_as: Encoding
) -> tuple[Columns, list[list[Cell]]]:
    """Return the columns and rows of the table `show`; `key_as` decides how keys are shown."""
    if show is AuditShow.DIFFERENCES:
        read = decoder(key_as)
        return DIFFERENCES, [_difference_cells(one, read(one.key)) for one in audited.differences]
    if show is AuditShow.TOPICS:
        return TOPICS, [_topic_cells(one) for one in audited.topics]
    if show is AuditShow.BUCKETS:
        return BUCKETS, [
            [one.topic, one.partition, one.start_ms, one.span_ms, *one.records, one.is_equal]
            for one in audited.buckets
        ]
    return CUTS, [
        [side, name.topic, name.partition, *cut]
        for (side, name), cut in sorted(audited.cuts.items())
    ]


def _difference_cells(one: Difference, key: Cell) -> list[Cell]:
    return [one.topic, one.kind.value, key, one.bucket_ms, *_last(one.a), *_last(one.b)]


def _last(last: Last | None) -> list[Cell]:
    if last is None:
        return [None] * 4
    ms = None if last.create_ms == NO_TIMESTAMP else last.create_ms
    return [last.partition, last.offset, ms, None if last.records < 0 else last.records]


def _topic_cells(one: TopicFigures) -> list[Cell]:
    kinds = [one.kinds.get(kind, 0) for kind in Kind]
    sides = [*one.keys, *one.records, *one.unkeyed]
    judged = [one.unkeyed_equal, one.history, one.deleted, one.superseded]
    return [one.topic, *sides, *judged, *kinds]


def lines(audited: AuditResults) -> list[str]:
    """Return a line for each topic, for each note, and for the chance of a missed difference."""
    lines_of_topics = []
    for one in audited.topics:
        kinds = ", ".join(f"{count:,} {kind.value}" for kind, count in one.kinds.items())
        a, b = one.keys
        keys = f"{a:,} and {plural(b, 'key')}"
        lines_of_topics.append(f"{one.topic}: {kinds or 'equal'}; {keys}")
    return lines_of_topics + notes(audited)


def notes(audited: AuditResults) -> list[str]:
    """Return the notes, and a line for the chance of a missed difference."""
    return [
        *(f"note: {line}" for line in audited.notes),
        f"the chance that a difference was missed is below {audited.chance:.1g}",
    ]


def took(audited: AuditResults, seconds: float) -> str:
    """Return a line about the amount of data that the audit read, and the duration of the audit."""
    records = sum(sum(one.records) for one in audited.topics)
    return (
        f"{plural(records, 'record')} compared{_read_text(audited)}, in {seconds:.1f} s:"
        f" {rate_text(records, seconds)}"
    )


def _read_text(audited: AuditResults) -> str:
    """Return a text about how many bytes of logs were read; empty for brokers, which report none.

    Small parts of a log may be read more than once, so the share can exceed 100 %.
    """
    if not audited.all_bytes:
        return ""
    share = audited.log_bytes / audited.all_bytes
    of_logs = f"{share_text(share)} of" if share <= 1 else f"{share:.1f} times the size of"
    return f", {bytes_text(audited.log_bytes)} read ({of_logs} the logs)"


def page(request: AuditCommand, group: str | None, audited: AuditResults) -> Report:
    """Return the report."""
    b = other_side(request, group)
    kinds = _kinds(audited)
    sections: list[Section] = [Items(lines(audited), "In short")]
    if kinds:
        meanings = [f"{kind}: {KIND_TEXTS[kind].meaning}" for kind in kinds]
        sections.append(Items(meanings, "Kinds found"))
    sections += _plots(audited, request.zone)
    for show in AuditShow:
        columns, rows = table(audited, show, request.key_as)
        sections.append(
            report_table(
                columns,
                rows,
                title=show.value.capitalize(),
                zone=request.zone,
                whole=f"--show {show} -o csv",
                nothing="No differences.",
            )
        )
    other = b if request.b is None else f"B ({b})"
    title = f"Audit of A ({request.a}) and {other}"
    return Report(title, sections, f"{audit_verdict(audited, request.a, b)}.")


def _plots(audited: AuditResults, zone: str | None) -> list[Section]:
    """Return plots of differences and records by hour, for at most `_PLOTTED` topics."""
    by_topic = Counter(one.topic for one in audited.differences)
    sections: list[Section] = []
    for topic, _ in by_topic.most_common(_PLOTTED):
        kinds: dict[str, Counter[int]] = {}
        series_of = _series_of(one.kind for one in audited.differences if one.topic == topic)
        for one in audited.differences:
            if one.topic == topic and one.bucket_ms is not None:
                kinds.setdefault(series_of[one.kind], Counter())[one.bucket_ms // HOUR_MS] += 1
        series = {name: {h: float(n) for h, n in hours.items()} for name, hours in kinds.items()}
        title = f"{topic}: keys that are not equal, by {{step}} of create time"
        sections.append(plot_by_hour({"create time": series}, "keys", title=title, zone=zone))
    by_side = {"A": Counter[int](), "B": Counter[int]()}
    for bucket in audited.buckets:
        if bucket.start_ms is not None:
            for side, records in zip(by_side.values(), bucket.records, strict=True):
                side[bucket.start_ms // HOUR_MS] += records
    if audited.buckets:
        panels = {
            f"{side}, create time": {"records": {h: float(n) for h, n in hours.items()}}
            for side, hours in by_side.items()
        }
        title = "Records by {step} of create time"
        sections.append(plot_by_hour(panels, "records", title=title, zone=zone))
    return sections


def _series_of(kinds: Iterable[Kind]) -> dict[Kind, str]:
    """Return a mapping from each kind to the name of its series.

    Each of the most frequent kinds has its own series. All other kinds share one series, which is
    named `others (...)` with the names of these kinds.
    """
    most = [kind for kind, _ in Counter(kinds).most_common()]
    if len(most) <= SERIES_MAX:
        return {kind: kind.value for kind in most}
    others = f"others ({', '.join(most[SERIES_MAX - 1 :])})"
    return {
        kind: kind.value if number < SERIES_MAX - 1 else others for number, kind in enumerate(most)
    }
