"""A real S3-compatible server stores tiers, which commands, the library and Spark read.

TIDELOG_S3_ENDPOINT selects another server; see docs/tiers.md.
"""

import pickle  # noqa: TID251 - of our own plain values, as Spark does
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.command_line import Cli
from tests.worlds.s3_server import S3Server, s3_server

import tidelog
from tidelog.cli.surroundings import ExitCode
from tidelog.env import Env
from tidelog.objects import open_store
from tidelog.scan import RequestedRange, plan, to_table
from tidelog.storage.tier_manager.tier_store import MANIFEST_KEY
from tidelog.types import NewRecord, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["s3_server"]

TOPIC = "flights"
COUNT = 400
SETTINGS = {
    "internal.segment.bytes": "4000",
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": "9223372036854775807",
    "local.retention.bytes": "9000",
}


@pytest.fixture
def cli_and_bucket(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Cli, str]:
    """Return a command line for a directory with a topic, and the URL of an empty bucket."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    cli = Cli(tmp_path / "data")
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as directory:
        directory.create_topic(TOPIC, partitions=2, config=SETTINGS)
        for number in range(COUNT):
            cli.clock.advance(1000)
            time = cli.clock.now_ms() - number % 7 * 500
            record = NewRecord(key=b"%d" % (number % 9), value=b"%d" % number, timestamp=time)
            directory.append(TOPIC, [record], partition=number % 2)
    return cli, f"s3://{s3_server.bucket()}/some/logs"


def _table(cli: Cli, env: Env | None = None) -> "pa.Table":
    columns = ["partition", "offset", "key", "value", "timestamp", "appendTimestamp"]
    return to_table(plan(str(cli.data), TOPIC, env=env or cli.env), columns)


def test_records_are_moved_to_a_real_server_and_read(
    cli_and_bucket: tuple[Cli, str], tmp_path: Path
) -> None:
    cli, url = cli_and_bucket
    before = _table(cli)
    moved = cli.ok("tier", TOPIC, "--to", url, "-o", "json").objects
    assert all(isinstance(row["released"], int) and row["released"] > 0 for row in moved)
    assert cli.ok("tier", "--verify").code == ExitCode.OK
    assert not cli.ok("tier", "--collect", "--dry-run", "-o", "json").objects
    assert _table(cli).equals(before)
    with tidelog.open(str(cli.data), env=cli.env) as directory:
        assert directory.count(TOPIC) == COUNT
        first = directory.offsets_at(TOPIC, cli.clock.now_ms() - (COUNT - 100) * 1000)
        assert all(found is not None and 40 < found.offset < 60 for found in first.values())
        shown = [record.value for _, record in directory.records(TOPIC)]
        assert sorted(int(value or b"") for value in shown) == list(range(COUNT))
    options = ["--store-option", f"tier_cache_dir={tmp_path / 'cache'}"]
    rows = cli.ok("read", TOPIC, "-o", "json", *options).objects
    assert len(rows) == COUNT
    assert list((tmp_path / "cache").iterdir())
    assert cli.ok("count", TOPIC, "-o", "json").objects[0]["records"] in (COUNT, COUNT // 2)


def test_options_are_used_by_the_store_without_the_environment(
    cli_and_bucket: tuple[Cli, str], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, url = cli_and_bucket
    before = _table(cli)
    cli.ok("tier", TOPIC, "--to", url)
    for name in s3_server.environment():
        monkeypatch.delenv(name)
    options = s3_server.options()
    given = [f"--store-option={name}={value}" for name, value in options.items()]
    assert cli.ok("tier", "--verify", *given).code == ExitCode.OK
    with tidelog.open(str(cli.data), store_options=options) as directory:
        found = directory.read(TOPIC, columns=before.column_names).read_all()
    assert found.equals(before)
    content = b"".join(p.read_bytes() for p in Path(cli.data).rglob("*") if p.is_file())
    assert options["secret_access_key"].encode() not in content


def test_spark_reads_both_tiers_as_one_topic(
    cli_and_bucket: tuple[Cli, str], s3_server: S3Server
) -> None:
    from tidelog.spark.directory_backend import open_backend
    from tidelog.spark.options import read_source_options

    cli, url = cli_and_bucket
    cli.ok("tier", TOPIC, "--to", url)
    given = {"path": str(cli.data), "subscribe": TOPIC, "splitBytes": "3000"}
    given |= {f"store.{name}": value for name, value in s3_server.options().items()}
    with open_backend(read_source_options(given), ("partition", "offset", "value")) as backend:
        names = backend.partitions()
        assert {name: backend.bounds([name])[name] for name in names} == {
            TopicPartition(TOPIC, 0): (0, COUNT // 2),
            TopicPartition(TOPIC, 1): (0, COUNT // 2),
        }
        tasks = backend.plan(dict.fromkeys(names, (0, COUNT // 2)))
        assert len(tasks) > 6
        assert backend.leader_epochs(dict.fromkeys(names, 10)) == dict.fromkeys(names, 0)
    rows = []
    for task in tasks:
        for batch in pickle.loads(pickle.dumps(task)).read():
            rows += batch.to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(COUNT))
    assert {(row["partition"], row["offset"]) for row in rows} == {
        (number % 2, number // 2) for number in range(COUNT)
    }


def test_a_reader_continues_while_segments_move(cli_and_bucket: tuple[Cli, str]) -> None:
    cli, url = cli_and_bucket
    before = _table(cli)
    planned = plan(str(cli.data), TOPIC, env=cli.env, split_bytes=3000)
    cli.ok("config", TOPIC, "--set", "file.delete.delay.ms=0")
    cli.ok("tier", TOPIC, "--to", url)
    assert to_table(planned, before.column_names).equals(before)
    wanted = RequestedRange(start_offset=20, end_offset=60)
    assert to_table(plan(str(cli.data), TOPIC, requested_range=wanted, env=cli.env)).num_rows == 80


def test_one_of_many_swaps_wins(s3_server: S3Server) -> None:
    store = open_store(f"s3://{s3_server.bucket()}/p", s3_server.options())
    first = store.put_if(MANIFEST_KEY, b"first", etag=None)
    assert first is not None
    won: list[int] = []

    def swap(number: int) -> None:
        if store.put_if(MANIFEST_KEY, b"%d" % number, etag=first.etag) is not None:
            won.append(number)

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read(MANIFEST_KEY) == b"%d" % won[0]
