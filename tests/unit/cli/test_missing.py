"""Notes on records that are no longer in the log, for a directory and a cluster."""

import pytest
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.record.builder import build_batch

HOUR = 3_600_000
DELETED = "note: earlier offsets were deleted by retention or delete-records"
NOTE = f"{DELETED} (`tidelog why flights` shows which): "


def said(cli: Cli, *words: str) -> str:
    """Return the messages of a command, without the directory in suggested commands."""
    return cli.ok(*words).err.replace(f" --data {cli.data}", "")


def note_at(place: tuple[str, ...]) -> str:
    """Return the beginning of a note; `why` needs the files, which a broker's client lacks."""
    return f"{DELETED}: " if "--bootstrap" in place else NOTE


@pytest.fixture
def hours(cli: Cli) -> Cli:
    """Append a record each hour to each of two partitions; delete the first two of partition 0.

    Each record is created 10 minutes before it is appended.
    """
    cli.ok("create", "flights", "--partitions", "2", "--config", "retention.ms=-1")
    for hour in range(4):
        cli.clock.set(NOW + hour * HOUR)
        for partition in range(2):
            cli.append(at(cli.clock.now_ms() - 600_000), partition=partition)
    cli.ok("delete-records", "flights:0", "--offset", "2", "--yes")
    cli.clock.set(NOW + 4 * HOUR)
    return cli


FIRST = NOW + 2 * HOUR - 600_000
RECORD = "flights-0 starts at offset 2, whose timestamp is 2023-11-15 00:03:20 UTC\n"
APPEND = "flights-0 starts at offset 2, whose append time is 2023-11-15 00:13:20 UTC\n"


@pytest.mark.parametrize(
    "words",
    [
        # This range starts at the time of the first remaining record. Deleted records may have had
        # the same time.
        ("count", "flights", "--from", str(FIRST)),
        ("count", "flights:0", "--during", f"{NOW}..{NOW + HOUR}"),
        ("count", "flights", "--by", "hour", "--from", str(NOW), "-o", "json"),
        ("count", "flights", "--to", str(FIRST)),
        ("read", "flights", "--from", str(NOW), "--to", str(NOW + 9 * HOUR)),
        ("read", "flights", "--from", str(NOW), "--limit", "1", "-o", "csv"),
        ("read", "flights", "--from", str(NOW), "--tail", "1"),
        ("read", "flights", "--partition", "0", "--offset", "0..4"),
        ("read", "flights", "--partition", "0", "--offset", "..2"),
        ("offsets", "flights", "--at", str(NOW)),
    ],
)
def test_a_range_that_begins_before_the_first_record_that_is_left(
    hours: Cli, place: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert said(hours, *words, *place).endswith(note_at(place) + RECORD)


@pytest.mark.parametrize(
    "words",
    [
        ("count", "flights"),
        ("count", "flights:1", "--from", str(NOW)),
        ("count", "flights", "--from", str(FIRST + 1)),
        ("count", "flights", "--to", str(FIRST + 1)),
        ("read", "flights"),
        ("read", "flights", "--tail", "2"),
        ("read", "flights", "--key", "nobody"),
        ("read", "flights", "--offset", "-2.."),
        ("read", "flights", "--offset", "2.."),
        ("read", "flights", "--offset", "2..", "--from", str(NOW)),
        ("offsets", "flights", "--at", str(FIRST + 1)),
        ("offsets", "flights", "--at", "earliest"),
        ("offsets", "flights", "--at", "max"),
    ],
)
def test_a_range_that_lacks_no_deleted_record(
    hours: Cli, place: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert "deleted" not in hours.ok(*words, *place).err


@pytest.mark.parametrize("words", [("count", "flights"), ("read", "flights")])
def test_the_append_clock_has_its_own_first_time(
    hours: Cli, place: tuple[str, ...], words: tuple[str, ...]
) -> None:
    words = (*words, "--clock", "append", "--from")
    early = said(hours, *words, str(FIRST + 600_000), *place)
    assert early.endswith(note_at(place) + APPEND)
    assert "deleted" not in hours.ok(*words, str(FIRST + 600_001), *place).err


@pytest.mark.parametrize("words", [(), ("--late",), ("--show", "hours", "-o", "json")])
def test_latency_has_the_note_by_append_time(hours: Cli, words: tuple[str, ...]) -> None:
    early = said(hours, "latency", "flights", "--from", str(NOW), *words)
    assert early.endswith(NOTE + APPEND)
    assert "deleted" not in hours.ok("latency", "flights", *words).err


def test_a_read_that_never_ends_has_the_note_first(hours: Cli) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    hours.wait = interrupt
    words = ("read", "flights", "--follow", "--from", str(NOW))
    assert said(hours, *words) == NOTE + RECORD


def test_many_partitions_are_one_line(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "5", "--config", "retention.ms=-1")
    for partition in range(5):
        cli.append(at(NOW), at(NOW), partition=partition)
        cli.ok("delete-records", f"flights:{partition}", "--offset", "1", "--yes")
    (line,) = said(cli, "count", "flights", "--from", str(NOW - 1)).splitlines()
    assert line.startswith(NOTE + "flights-0 starts at offset 1, ")
    assert line.count("starts at") == 3
    assert line.endswith("; and 2 more partitions")


class TestCompacted:
    @pytest.fixture
    def planes(self, cli: Cli) -> Cli:
        """Append five records of one key, one each hour; compaction removes the first four."""
        cli.ok("create", "planes", "--config", "cleanup.policy=compact")
        for hour in range(5):
            cli.clock.set(NOW + hour * HOUR)
            cli.append(at(cli.clock.now_ms(), key=b"N14228"), topic="planes")
        cli.ok("compact", "planes", "--roll")
        return cli

    @pytest.mark.parametrize(
        "words",
        [
            ("count", "planes", "--from", str(NOW)),
            ("count", "planes", "--to", str(NOW + HOUR), "--clock", "append"),
            ("read", "planes", "--during", f"{NOW}..{NOW + HOUR}"),
            ("offsets", "planes", "--at", str(NOW)),
            ("latency", "planes", "--from", str(NOW)),
        ],
    )
    def test_a_range_of_time(self, planes: Cli, words: tuple[str, ...]) -> None:
        note = "compaction may have removed records of this range: planes-0 has 1 record left of 5"
        assert planes.ok(*words).err.endswith(f"note: {note} offsets\n")

    def test_a_topic_that_is_no_longer_compacted(self, planes: Cli) -> None:
        planes.ok("config", "planes", "--set", "cleanup.policy=delete", "--set", "retention.ms=-1")
        note = "compaction may have removed records of this range: planes-0 has 1 record left of 5"
        err = planes.ok("count", "planes", "--from", str(NOW)).err
        assert err.endswith(f"note: {note} offsets\n")
        err = planes.ok("read", "planes", "--offset", "0..3").err
        assert "compaction removed records of this range: planes-0 has no records from" in err

    @pytest.mark.parametrize("text", ["0..3", "..4", "0..9"])
    def test_a_range_of_offsets_that_begins_with_a_gap(self, planes: Cli, text: str) -> None:
        note = (
            "note: compaction removed records of this range: planes-0 has no records from offset 0"
            " up to its next record at offset 4\n"
        )
        assert planes.ok("read", "planes:0", "--offset", text).err.endswith(note)

    @pytest.mark.parametrize(
        "words",
        [
            ("count", "planes"),
            ("count", "planes", "--from", str(NOW + 4 * HOUR + 1)),
            ("count", "planes", "--from", str(NOW + 9 * HOUR), "--clock", "append"),
            ("read", "planes", "--offset", "4..5"),
            ("read", "planes", "--offset", "-1.."),
        ],
    )
    def test_a_range_that_lacks_no_record(self, planes: Cli, words: tuple[str, ...]) -> None:
        assert "compaction" not in planes.ok(*words).err

    def test_a_compaction_that_removed_nothing(self, cli: Cli) -> None:
        cli.ok("create", "planes", "--config", "cleanup.policy=compact")
        cli.append(at(NOW, key=b"a"), at(NOW, key=b"b"), topic="planes")
        cli.ok("compact", "planes", "--roll")
        assert cli.ok("count", "planes", "--from", str(NOW)).err == ""

    def test_without_a_zone_map_the_number_is_unknown(self, planes: Cli) -> None:
        for path in (planes.data / "planes-0").glob("*.zones"):
            path.unlink()
        err = planes.ok("count", "planes", "--from", str(NOW)).err
        note = "compaction may have removed records of this range: planes-0 below offset 5"
        assert err.endswith(f"note: {note}\n")

    def test_a_log_start_in_a_segment_makes_the_number_unknown(self, cli: Cli) -> None:
        policy = ("--config", "cleanup.policy=compact,delete", "--config", "retention.ms=-1")
        cli.ok("create", "planes", *policy)
        cli.append(*(at(NOW, key=key) for key in (b"a", b"a", b"b", b"c")), topic="planes")
        cli.ok("compact", "planes", "--roll")
        cli.ok("delete-records", "planes:0", "--offset", "3", "--yes")
        err = cli.ok("count", "planes", "--from", str(NOW)).err
        note = "compaction may have removed records of this range: planes-0 below offset 4"
        assert err.endswith(f"note: {note}\n")

    def test_markers_of_transactions_are_no_gaps(self, cli: Cli) -> None:
        cli.ok("create", "planes", "--config", "cleanup.policy=compact")
        with tidelog.open(cli.data, writable=True, env=cli.env) as directory:
            log = directory.log("planes", 0)
            for producer, is_committed in enumerate((True, False)):
                values = [at(NOW, key=b"%d" % producer), at(NOW, key=b"c")]
                batch = build_batch(
                    values,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
                log.append_batches(batch)
                log.end_transaction(
                    producer_id=producer,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    commit=is_committed,
                )
            log.append([at(NOW, key=b"c")])
        cli.ok("compact", "planes", "--roll")  # leaves offsets 0, 2, 5 and 6; 2 and 5 are markers
        for text in ("0..1", "2..3", "5..7"):
            assert "compaction" not in cli.ok("read", "planes", "--offset", text).err
        note = "planes-0 has no records from offset 3 up to its next record at offset 6\n"
        assert cli.ok("read", "planes", "--offset", "3..6").err.endswith(note)
        note = "planes-0 has 2 records and 2 transaction markers left of 7 offsets\n"
        assert cli.ok("count", "planes", "--from", str(NOW)).err.endswith(note)
        left = "left 2 records and 2 transaction markers of 7 offsets\n"
        assert f"    compaction    {left}" in cli.ok("why", "planes:0").out

    def test_a_broker_knows_only_the_policy(self, planes: Cli) -> None:
        note = "compaction may have removed records of this range: planes-0 below offset 5"
        with tidelog.broker(str(planes.data)) as broker:
            place = ("--bootstrap", broker.bootstrap_servers)
            assert note in planes.ok("count", "planes", "--from", str(NOW), *place).err
            assert "compaction" not in planes.ok("count", "planes", *place).err


class TestCopyOfCompacted:
    @pytest.fixture(params=["between batches", "in a batch"])
    def copy(self, cli: Cli, request: pytest.FixtureRequest) -> Cli:
        """Return a standby's copy of a log from which compaction had removed offset 0."""
        records = [at(NOW + ms, key=key) for ms, key in enumerate((b"a", b"b", b"a", b"c"))]
        cli.ok("create", "planes", "--config", "cleanup.policy=compact")
        appends = [records] if request.param == "in a batch" else [[one] for one in records]
        for one in appends:
            cli.append(*one, topic="planes")
        cli.ok("compact", "planes", "--roll")
        copy = Cli(cli.data.with_name("copy"), cli.clock)
        copy.ok("create", "planes", "--config", "cleanup.policy=compact")
        data = (cli.data / "planes-0" / f"{0:020}.log").read_bytes()
        with tidelog.open(copy.data, writable=True, env=copy.env) as directory:
            directory.log("planes", 0).follower.append(data)
        return copy

    def test_a_table_of_the_past_is_inexact(self, copy: Cli) -> None:
        words = ("read", "planes", "--table", "--at", str(NOW + 1))
        assert "this copy has no history of removed records" in copy.run(*words).err
        assert copy.ok(*words, "--inexact", "mark", "-o", "csv").out.count("\n") == 2

    def test_a_range_has_the_note(self, copy: Cli) -> None:
        note = "note: compaction may have removed records of this range: planes-0 below offset 4\n"
        assert copy.ok("count", "planes", "--from", str(NOW)).err.endswith(note)
        assert "compaction" not in copy.ok("count", "planes", "--from", str(NOW + 9)).err
        note = "planes-0 has no records from offset 0 up to its next record at offset 1\n"
        assert copy.ok("read", "planes", "--offset", "0..2").err.endswith(note)

    def test_why_counts_the_records_that_are_left(self, copy: Cli) -> None:
        assert "compaction    left 3 records of 4 offsets\n" in copy.ok("why", "planes:0").out
