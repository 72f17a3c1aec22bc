"""`tidelog produce`: appends rows of a file, lines of a pipe or one typed record to a topic."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeAlias, cast

import click

from tidelog.amounts import plural, verb
from tidelog.cli import inputs, output, times
from tidelog.cli.inputs import HEADERS_EXAMPLE, Columns, InputRecord, LiveInput, live_input
from tidelog.cli.options import (
    Format,
    InputFormat,
    bundled,
    declared_by,
    examples,
    headers_as_option,
    key_as_option,
    one_of,
    option,
    result_format_option,
    topic_argument,
    value_as_option,
    with_options,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import Place, open_directory, open_remote, place_options
from tidelog.cli.surroundings import (
    Interrupted,
    InvalidInput,
    Surroundings,
    UsageProblem,
    byte_progress,
    interrupted_as,
)
from tidelog.config import CLEANUP_DELETE, CompressionType, RetentionClock, TopicConfig
from tidelog.env import Clock
from tidelog.errors import (
    InvalidRecord,
    InvalidTimestamp,
    RefusedRecords,
    StorageFailure,
    TidelogError,
    times_of,
    with_times,
)
from tidelog.jobs.options import CODECS
from tidelog.lazy_dataclass import dataclass
from tidelog.record.builder import BATCH_BYTES
from tidelog.storage.log.append_types import AppendResult
from tidelog.storage.log.batch_building import record_bytes
from tidelog.timespec import TIME_HELP
from tidelog.types import INT32_MAX, INT64_MAX, Codec, NewRecord, TimestampType

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.storage.directory.numbered_loads import LoadResult

STDIN: Final = "-"
# Maximum number of rows and of bytes in one append: enough to fill batches of several partitions,
# but small enough to take little memory.
_ROWS_AT_ONCE: Final = 5_000
_BYTES_AT_ONCE: Final = 1 << 26
# Maximum time in ms that a row from a pipe waits for further rows of its append.
_LINGER_MS: Final = 100
# Default of the client library's setting `batch.size`, the maximum size of a batch for a broker.
_BROKER_BATCH_BYTES: Final = 1_000_000
# Assumed maximum difference between this machine's clock and a broker's clock, in ms.
_CLOCK_MARGIN_MS: Final = 300_000


def codec_of(name: str) -> Codec:
    """Return the codec with this name, one of `CODECS`."""
    return Codec(CODECS.index(name))


_columns: Final = bundled(
    "columns",
    Columns,
    click.option(
        "--key",
        metavar="COL",
        help="Column of the key. Without --from: the key itself. Default: no key.",
    ),
    click.option(
        "--key-separator",
        metavar="SEP",
        help="Text between key and value of a line. Default: the line is the value.",
    ),
    click.option(
        "--time",
        metavar="COL",
        help="Column of the create time. Without --from: the create time itself,"
        f" {TIME_HELP}. Default: now.",
    ),
    click.option(
        "--value",
        metavar="COL",
        help="Column of the value. Without --from: the value itself. Default: the row as JSON, or"
        " a line of stdin.",
    ),
    click.option(
        "--headers",
        metavar="COL",
        help="Column of headers: a JSON object that maps names to values. Without --from: the"
        " object itself. Default: no headers.",
    ),
    click.option(
        "--infer", is_flag=True, help="Write numbers of CSV as JSON numbers. Default: as text."
    ),
    key_as_option,
    value_as_option,
    headers_as_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Options of `tidelog produce`."""

    topic: str = declared_by(topic_argument)
    source: str | None = option(
        "--from",
        metavar="FILE",
        help="A file, or - for stdin. Default: one record of --key and --value, or lines of stdin.",
    )
    place: Place = declared_by(place_options)
    input_format: InputFormat | None = declared_by(
        one_of(
            "--format",
            "-f",
            "input_format",
            kind=InputFormat,
            default=None,
            text="Format of the input. Default: the format of the file's extension, else lines.",
        )
    )
    columns: Columns = declared_by(_columns)
    partition: int | None = option(
        "--partition", type=int, metavar="N", help="Partition of all records. Default: by key."
    )
    codec: str = option(
        "--codec",
        type=click.Choice(CODECS),
        default=CODECS[0],
        show_default=True,
        help="Compression of the records.",
    )
    accept_clock: bool = option(
        "--accept-clock",
        is_flag=True,
        help="Append even if the clock jumped ahead by more than tidelog.max.clock.jump.ms (an"
        " hour, unless it is set). Default: refuse.",
    )
    check: bool = option(
        "--check",
        is_flag=True,
        help="Check the whole input before appending anything. Default: append the rows before"
        " the first invalid one.",
    )
    once: str | None = option(
        "--once",
        metavar="NAME",
        help="Name of the source; each of its rows is appended only once, even if the command"
        " is repeated. Default: append all rows.",
    )
    kind: Format = declared_by(result_format_option)
    zone: str | None = declared_by(zone_option)


@dataclass(slots=True)
class _Tally:
    """Counts of the rows that were appended so far.

    `partitions` maps each partition to (records, first offset, last offset, append time in ms).
    """

    partitions: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    oldest_ms: int = 0  # retention deletes records with earlier create times
    old: int = 0  # number of appended rows with create times before `oldest_ms`
    committed: int = 0  # number of rows that `load_once` appended before it failed
    is_complete: bool = False  # whether all rows of the input were appended
    # location of the first number that was written as text
    numbers: list[str] = field(default_factory=list)

    def take(self, results: dict[int, AppendResult]) -> None:
        for number, result in results.items():
            count, first, _, _ = self.partitions.get(number, (0, result.base_offset, 0, 0))
            count += result.record_count
            self.partitions[number] = (count, first, result.last_offset, result.append_time_ms)

    def take_loaded(self, loaded: "LoadResult") -> None:
        """Add the rows that `load_once` has appended."""
        for number, (rows, first, last, append_ms) in loaded.partitions.items():
            self.partitions[number] = rows, first, last, append_ms

    def is_old(self, record: NewRecord) -> bool:
        """Whether a record's create time is so old that retention would delete the record."""
        return record.timestamp is not None and 0 <= record.timestamp < self.oldest_ms

    @property
    def records(self) -> int:
        return sum(row[0] for row in self.partitions.values())

    def rows(self) -> list[list[Cell]]:
        return [[number, *row] for number, row in sorted(self.partitions.items())]


@click.command(
    "produce",
    epilog=examples(
        "tidelog produce notes --key N14228 --value 'engine checked'",
        f"tidelog produce notes --value 'engine checked' --headers '{HEADERS_EXAMPLE}'",
        "echo 'N14228:engine checked' | tidelog produce notes --key-separator :",
        "tidelog produce flights --from flights.csv --key tailnum --infer",
        "tidelog produce flights --from flights.parquet --key tailnum --time departure",
        "kcat -C -t flights | tidelog produce flights --codec zstd",
        "tidelog produce flights --from flights.csv --once flights-2013 --check",
        "tidelog produce notes --value 'engine checked' --bootstrap broker:9092",
    ),
)
@with_options(ProduceOptions)
def produce(surroundings: Surroundings, options: ProduceOptions) -> None:
    """Append one record, lines of a pipe, or the rows of a file.

    With --from, the options --key, --value, --time and --headers name columns. Without
    --from, these options give the key, value, time and headers (as JSON) of one record. Without
    --from and --value, each line of stdin is the value of a record.
    """
    tally = _Tally()
    try:
        is_limit_known = _append_input(surroundings, options, tally)
    except StorageFailure as error:
        if tally.is_complete:  # the sync or the close failed
            count = tally.records
            were = verb(count, "was", "were")
            error.add_note(f"{plural(count, 'record')} {were} appended before this failure")
        raise
    verdict = f"appended {plural(tally.records, 'record')} to {options.topic}"
    output.print_verdict(surroundings, verdict, options.kind)
    columns = output.columns(
        output.detail("topic"),
        output.number("partition"),
        output.count("records"),
        output.number("first", "last"),
        output.sparse(output.time("append_time")),
    )
    rows = [[options.topic, *row] for row in tally.rows()]
    output.print_rows(surroundings, columns, rows, options.kind, zone=options.zone)
    if tally.numbers:
        surroundings.note(
            f"numbers were written as text, first at {tally.numbers[0]};"
            " --infer writes them as numbers"
        )
    if tally.old:
        _note_old(surroundings, options, tally.old, is_limit_known=is_limit_known)


class _Terms(NamedTuple):
    """Limits of an append to a target.

    Attributes:
        batch_bytes: Size in bytes at which a batch is finished.
        near_limit: Returns whether a broker may refuse a record because of its create time.
    """

    batch_bytes: int
    near_limit: Callable[[NewRecord], bool]


def _terms_of(
    surroundings: Surroundings, options: ProduceOptions, config: TopicConfig | None
) -> _Terms:
    batch_bytes = BATCH_BYTES
    if options.place.access is not None:
        # unlike Kafka's Java client, the client library does not split a refused batch
        limit = _BROKER_BATCH_BYTES if config is None else config.max_message_bytes
        batch_bytes = max(min(limit, _BROKER_BATCH_BYTES), 1)
    return _Terms(batch_bytes, _near_limit(surroundings, options, config))


def _append_input(surroundings: Surroundings, options: ProduceOptions, tally: _Tally) -> bool:
    """Append the rows of the input to the target, and count them in `tally`.

    Returns:
        Whether the topic's age limit is known.

    Raises:
        InvalidInput: A row is invalid; the text states how many rows before it were appended.
        StorageFailure: The disk failed; a note states how many rows were appended, if any.
        Interrupted: The user pressed Ctrl-C; the text states the number of appended rows, or how a
            load with `--once` continues.
    """
    with (
        _open_target(surroundings, options) as directory,
        _open_source(surroundings, options) as source,
    ):
        # the error for an unknown topic lists the existing topics
        config = directory.topic(options.topic).config
        tally.oldest_ms = _oldest_ms(surroundings, config)
        is_remote = options.place.access is not None
        terms = _terms_of(surroundings, options, config)
        loaded = 0
        if options.once is not None:
            loaded = directory.loaded_rows(options.topic, options.once)
        check = _check_of(surroundings, options, config)
        if options.check:
            _check_all(surroundings, source, options, check, loaded)
        groups = _groups(
            _records(surroundings, source, options, tally.numbers),
            _BYTES_AT_ONCE,
            surroundings.env.clock,
            _live_input(source, options),
        )
        if not options.check and (is_remote or options.once is not None):
            groups = _checked(groups, check, loaded)
        try:
            with _progress(surroundings, source, options) as advance:
                if options.once is None:
                    _append_all(directory, groups, options, terms, tally, advance)
                else:
                    records = chain.from_iterable(groups)
                    _load_once(surroundings, directory, records, options, terms.batch_bytes, tally)
            tally.is_complete = True
            directory.flush()
            return is_remote or cast("Directory", directory).log_dir.knows_age_limit(options.topic)
        except InvalidInput as error:
            before = tally.records or tally.committed
            remark = "nothing was appended"
            if before:
                remark = f"{plural(before, 'row')} before it {verb(before, 'was', 'were')} appended"
            if before and options.once is None:
                again = verb(before, "is", "are")
                remark += (
                    f", and {again} appended again if the command is repeated; --check finds"
                    " invalid rows before anything is appended"
                )
            raise with_times(InvalidInput(f"{error}; {remark}"), *times_of(error)) from error


def _note_old(
    surroundings: Surroundings, options: ProduceOptions, count: int, *, is_limit_known: bool
) -> None:
    """Print that retention deletes `count` records soon: they are older than `retention.ms`."""
    are, them = verb(count, "is", "are"), verb(count, "it", "them")
    records = plural(count, "appended record")
    what = (
        "the topic's retention.ms: retention deletes"
        if is_limit_known
        else "the default of retention.ms: a broker that serves the directory may delete"
    )
    surroundings.note(
        f"{records} {are} older than {what} {them} with {verb(count, 'its', 'their')}"
        f" segment; `tidelog config {options.topic}{options.place.words} --set retention.ms=-1`"
        f" keeps {them}"
    )


def _oldest_ms(surroundings: Surroundings, config: TopicConfig | None) -> int:
    """Return the create time in ms before which retention deletes records; 0 for none."""
    if config is None:
        return 0
    is_by_append = (
        config.tidelog_retention_clock is RetentionClock.APPEND
        or config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    )
    if config.retention_ms < 0 or CLEANUP_DELETE not in config.cleanup_policy or is_by_append:
        return 0
    return max(surroundings.env.clock.now_ms() - config.retention_ms, 0)


def _open_target(
    surroundings: Surroundings, options: ProduceOptions
) -> "AbstractContextManager[Directory | RemoteDirectory]":
    if options.place.access is None:
        accept = options.accept_clock
        return open_directory(surroundings, options.place.data, writable=True, accept_clock=accept)
    if options.accept_clock:
        raise UsageProblem(
            "--accept-clock applies to a directory's clock; for a broker run"
            " `tidelog accept-clock --data DIR` on its machine"
        )
    return open_remote(surroundings, options.place.access)


# Function that takes rows, or raises RefusedRecords and takes no row.
_Take: TypeAlias = Callable[[Sequence[InputRecord]], None]


def _check_of(
    surroundings: Surroundings, options: ProduceOptions, config: TopicConfig | None
) -> _Take:
    """Return a function that raises the error for rows that the topic's rules refuse."""
    from tidelog.storage.log.validator import check_records

    topic, codec, clock = options.topic, codec_of(options.codec), surroundings.env.clock
    is_remote = options.place.access is not None
    rules, sure_codec = config, codec
    if is_remote and config is not None:
        # these rules don't limit the size of compressed batches, so the check compresses none
        rules, sure_codec = _sure_rules(config, codec), Codec.NONE

    def check(rows: Sequence[InputRecord]) -> None:
        records = [one.record for one in rows]
        if is_remote:
            from tidelog.remote.producer import refuse_time

            for record in records:
                if record.timestamp is not None:
                    refuse_time(topic, record.timestamp)
        if config is None or rules is None:
            return
        try:
            check_records(topic, rules, records, sure_codec, clock.now_ms())
        except InvalidTimestamp:
            check_records(topic, config, records, codec, clock.now_ms())  # states the real limit
            raise

    return check


def _sure_rules(config: TopicConfig, codec: Codec) -> TopicConfig:
    """Return settings that refuse no record that a broker would accept.

    Two checks are left to the broker: create times near a limit, because the broker compares them
    with its own clock, and the size of compressed batches.
    """
    before_ms, after_ms = (
        config.message_timestamp_before_max_ms,
        config.message_timestamp_after_max_ms,
    )
    return replace(
        config,
        message_timestamp_before_max_ms=min(before_ms + _CLOCK_MARGIN_MS, INT64_MAX),
        message_timestamp_after_max_ms=min(after_ms + _CLOCK_MARGIN_MS, INT64_MAX),
        max_message_bytes=config.max_message_bytes if codec is Codec.NONE else INT32_MAX,
        # a broker checks the size before it compresses the batch
        compression_type=CompressionType.PRODUCER,
    )


def _near_limit(
    surroundings: Surroundings, options: ProduceOptions, config: TopicConfig | None
) -> Callable[[NewRecord], bool]:
    """Return a function that returns whether a record's create time is close to a limit.

    Only the broker can decide whether it accepts such a record; see `_sure_rules`.
    """
    from tidelog.storage.log.record_rules import RecordRules

    clock = surroundings.env.clock
    if config is None:
        return lambda _record: False
    before_ms, after_ms = (
        config.message_timestamp_before_max_ms,
        config.message_timestamp_after_max_ms,
    )
    narrow = replace(
        config,
        message_timestamp_before_max_ms=max(before_ms - _CLOCK_MARGIN_MS, 0),
        message_timestamp_after_max_ms=max(after_ms - _CLOCK_MARGIN_MS, 0),
    )
    rules = RecordRules(options.topic, narrow)

    def near_limit(record: NewRecord) -> bool:
        time_ms = record.timestamp
        return time_ms is not None and not rules.is_allowed(time_ms, clock.now_ms())

    return near_limit


def _with_row(
    error: RefusedRecords,
    rows: Sequence[InputRecord],
    near_limit: Callable[[NewRecord], bool],
) -> RefusedRecords:
    """Return a cluster's error with the location of the refused row, as far as it is known.

    The client library names only records that it refuses itself. If a broker refuses a create time,
    the row is one of those whose times are close to a limit.
    """
    reason = str(error)
    if error.record_errors:
        first = error.record_errors[0]
        reason, locations = first.reason, [rows[first.index].location]
    else:
        # A batch with several refused times may cause InvalidRecord. Records without a key would
        # cause this error too, but they were refused before the append.
        is_time = isinstance(error, InvalidTimestamp | InvalidRecord)
        locations = [row.location for row in rows if is_time and near_limit(row.record)]
    if not locations:
        return error
    others = len(locations) - 1
    more = f" or {plural(others, 'other row')} with a time close to a limit" if others else ""
    named = type(error)(f"{locations[0]}{more}: {reason}", record_errors=error.record_errors)
    for note in getattr(error, "__notes__", ()):
        named.add_note(note)
    return with_times(named, *times_of(error))


def _take_valid(rows: Sequence[InputRecord], take: _Take) -> None:
    """Take the rows; if a row is refused, take only the rows before the first refused row.

    Raises:
        InvalidInput: A row is refused. The error names the row.
    """
    try:
        take(rows)
    except RefusedRecords as error:
        if len(rows) == 1:
            reason = error.record_errors[0].reason if error.record_errors else error
            invalid = InvalidInput(f"{rows[0].location}: {reason}")
            raise with_times(invalid, *times_of(error)) from error
    else:
        return
    half = len(rows) // 2
    _take_valid(rows[:half], take)
    _take_valid(rows[half:], take)


def _checked(
    groups: Iterator[list[InputRecord]], check: _Take, loaded: int
) -> Iterator[list[InputRecord]]:
    """Yield the rows before the first row that is invalid or refused, then raise its error.

    The first `loaded` rows are not checked, because an earlier run has appended them.
    """
    for group in groups:
        known = min(loaded, len(group))
        loaded -= known
        valid = group[:known]

        def take(rows: Sequence[InputRecord], valid: list[InputRecord] = valid) -> None:
            check(rows)
            valid.extend(rows)

        try:
            if known < len(group):
                _take_valid(group[known:], take)
        except InvalidInput:
            if valid:
                yield valid
            raise
        yield valid


def _check_all(
    surroundings: Surroundings,
    source: BinaryIO,
    options: ProduceOptions,
    check: _Take,
    loaded: int,
) -> None:
    """Read the whole input once, so that an invalid row is found before any row is appended."""
    records = _records(surroundings, source, options, [])
    groups = _groups(records, _BYTES_AT_ONCE, surroundings.env.clock)
    try:
        for _ in _checked(groups, check, loaded):
            pass
    except InvalidInput as error:
        failed = InvalidInput(f"{error}; nothing was appended")
        raise with_times(failed, *times_of(error)) from error
    source.seek(0)


def _load_once(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    records: Iterator[InputRecord],
    options: ProduceOptions,
    batch_bytes: int,
    tally: _Tally,
) -> None:
    """Append those rows of a source that are not in the topic yet.

    Raises:
        InvalidInput: A row is invalid. In a directory, no row is then appended; in a cluster, the
            rows before the invalid row are appended.
        Interrupted: The user pressed Ctrl-C; the text states how the load continues.
    """
    assert options.once is not None
    are_old = bytearray()  # one flag per row: whether the row is old

    def noted() -> Iterator[NewRecord]:
        for record, _ in records:
            are_old.append(tally.is_old(record))
            yield record

    try:
        with interrupted_as("run the command again to append the remaining rows, each only once"):
            loaded = directory.load_once(
                options.topic,
                noted(),
                source=options.once,
                partition=options.partition,
                codec=codec_of(options.codec),
                batch_bytes=batch_bytes,
            )
    except InvalidInput:
        tally.committed = 0 if directory.loads_are_atomic else len(are_old)
        raise
    tally.take_loaded(loaded)
    tally.old = sum(are_old[loaded.skipped :])
    if loaded.skipped:
        were = verb(loaded.skipped, "was", "were")
        rows = f"{plural(loaded.skipped, 'row')} of {options.once} {were}"
        surroundings.note(f"{rows} appended by an earlier run and left out")


def _append_all(
    directory: "Directory | RemoteDirectory",
    groups: Iterator[list[InputRecord]],
    options: ProduceOptions,
    terms: _Terms,
    tally: _Tally,
    advance: Callable[[], None],
) -> None:
    """Append the groups of rows, one group at a time.

    Raises:
        InvalidInput: A row is invalid or refused; the rows before it are appended.
        Interrupted: The user pressed Ctrl-C; the text states the number of appended rows.
    """
    partition, codec = options.partition, codec_of(options.codec)

    def append(rows: Sequence[InputRecord]) -> None:
        records = [one.record for one in rows]
        try:
            results = directory.append(
                options.topic,
                records,
                partition=partition,
                codec=codec,
                batch_bytes=terms.batch_bytes,
            )
        except TidelogError as error:
            if before := tally.records:
                rows_before = f"{plural(before, 'row')} before {rows[0].location}"
                error.add_note(f"{rows_before} {verb(before, 'was', 'were')} appended")
            if isinstance(error, StorageFailure) and error.is_partial:
                error.add_note(f"some of the rows from {rows[0].location} on may be in the log")
            if isinstance(error, RefusedRecords) and options.place.access is not None:
                raise _with_row(error, rows, terms.near_limit) from error
            raise
        tally.take(results)
        tally.old += sum(map(tally.is_old, records))

    try:
        for group in groups:
            if options.place.access is None:
                _take_valid(group, append)
            else:
                append(group)  # a broker may append some of the rows although it refuses others
            advance()
    except KeyboardInterrupt as error:
        # the interrupt may have come during an append, whose rows are not counted
        before = tally.records
        appended = f"at least {plural(before, 'row')} {verb(before, 'was', 'were')} appended"
        raise Interrupted(appended) from error


def _live_input(source: BinaryIO, options: ProduceOptions) -> LiveInput | None:
    """Return the input if it is read line by line from a pipe or terminal, else None."""
    kind = _format(options)
    if kind not in (InputFormat.LINES, InputFormat.JSON) or not isinstance(source, LiveInput):
        return None
    source.skips_blank_lines = kind is InputFormat.JSON
    return source


def _format(options: ProduceOptions) -> InputFormat:
    return options.input_format or inputs.format_of(options.source or STDIN)


def _groups(
    records: Iterator[InputRecord],
    bytes_max: int,
    clock: Clock,
    live: LiveInput | None = None,
) -> Iterator[list[InputRecord]]:
    """Yield the rows of each append.

    A group ends when it has enough rows or bytes. A group of a live input also ends when its first
    row is `_LINGER_MS` old and the input has no further row yet.

    Raises:
        InvalidInput: A row is invalid; the rows before it have been yielded.
    """
    group: list[InputRecord] = []
    size, due_ms, invalid = 0, 0, None
    try:
        for record in records:
            more = record_bytes(record.record)
            if group and (len(group) == _ROWS_AT_ONCE or size + more > bytes_max):
                yield group
                group, size = [], 0
            group.append(record)
            size += more
            if live is None:
                continue
            if len(group) == 1:
                due_ms = clock.monotonic_ms() + _LINGER_MS
            if live.pauses(clock, due_ms):
                yield group
                group, size = [], 0
    except InvalidInput as error:
        invalid = error
    if group:
        yield group
    if invalid is not None:
        raise invalid


def _records(
    surroundings: Surroundings, source: BinaryIO, options: ProduceOptions, numbers: list[str]
) -> Iterator[InputRecord]:
    def parse_time(text: str) -> int:
        return times.read_create_time(surroundings, text, options.zone)

    if options.source is None:
        if options.input_format not in (None, InputFormat.LINES):
            raise UsageProblem(
                f"--format {options.input_format} needs an input; add --from FILE or --from -"
            )
        return inputs.typed_records(source, options.columns, parse_time)
    kind = _format(options)
    is_pipe = options.source == STDIN or not source.seekable()
    if kind is InputFormat.PARQUET and is_pipe:
        raise UsageProblem("Parquet can't be read from a pipe; give --from FILE")
    name = "stdin" if options.source == STDIN else options.source
    return inputs.read_records(source, name, kind, options.columns, parse_time, numbers)


@contextmanager
def _open_source(surroundings: Surroundings, options: ProduceOptions) -> Iterator[BinaryIO]:
    """Open the input; a pipe is first copied to a file if `--check` has to read it twice."""
    if options.source is None and options.columns.value is not None:
        yield BytesIO()
        return
    is_stdin = options.source in (None, STDIN)
    if is_stdin and surroundings.stdin.isatty():
        surroundings.say("reading lines from the terminal; Ctrl-D ends the input")
    with (
        nullcontext(surroundings.stdin) if is_stdin else Path(str(options.source)).open("rb")
    ) as file:
        is_file = not is_stdin and file.seekable()
        source = file if is_file else live_input(file)
        if is_file or not options.check:
            yield source
            return
        with TemporaryFile() as copy:
            copyfileobj(source, copy)
            copy.seek(0)
            yield copy


@contextmanager
def _progress(
    surroundings: Surroundings, source: BinaryIO, options: ProduceOptions
) -> Iterator[Callable[[], None]]:
    if options.source is None or options.source == STDIN or not Path(options.source).is_file():
        yield lambda: None
        return
    size = Path(options.source).stat().st_size
    with byte_progress(surroundings, options.source, size) as advance:
        yield lambda: advance(_position(source, size))


def _position(source: BinaryIO, size: int) -> int:
    """Return the position in the input file, or `size` if the position is larger.

    If the reader of the rows has closed the file, return `size`.
    """
    return size if source.closed else min(source.tell(), size)
