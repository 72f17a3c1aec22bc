"""Tasks of the reporting jobs on parts of a directory, which is local or in an object store."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.directories.random_logs import TOPIC, make_log_dir

from tidelog.jobs.audit.work import KeyPart, read_cells
from tidelog.jobs.lag.work import count_split, decode_counts
from tidelog.jobs.latency.job import ReduceSplit
from tidelog.jobs.reindex.job import do_part
from tidelog.jobs.reindex.work import PartDone
from tidelog.objects.object_files import env_for, shared_store
from tidelog.scan import plan
from tidelog.scan.latency import latency
from tidelog.scan.split import encode_split
from tidelog.scan.split_latency import decode_times
from tidelog.spark.places import Place
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import ClockName, IsolationLevel

URL = "memory://jobs/logs"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("local")
    make_log_dir(str(path), 3, partitions=2, steps=50)
    return str(path)


@pytest.fixture(params=["local", "store"])
def place(request: pytest.FixtureRequest, local: str) -> Iterator[str]:
    """Yield the directory, then a copy of it in an object store."""
    if request.param == "local":
        yield local
        return
    store = shared_store(URL)
    for path in Path(local).rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(local)), path.read_bytes())
    yield URL
    for found in list(store.list("")):
        store.delete(found.key)


def test_latencies_of_splits(place: str, local: str) -> None:
    columns = ("offset", "createTimestamp", "appendTimestamp")
    planned = plan(
        place, clock=ClockName.APPEND, columns=columns, split_bytes=3000, env=env_for(place)
    )
    by_append = LatencyByHour()
    for split in planned:
        facts, *histograms = ReduceSplit((0, 1_000), Place(place))(encode_split(split))
        by_append.merge(decode_times(facts, *histograms).by_append)  # type: ignore[arg-type] # of one split
    assert by_append == latency(local, TOPIC)[TOPIC].by_hour


def test_counts_of_splits(place: str) -> None:
    planned = plan(place, TOPIC, split_bytes=3000, env=env_for(place))
    total = 0
    for split in planned:
        (text,) = count_split(
            Place(place), json.dumps([encode_split(split), [0, split.end_offset]])
        )
        counts = decode_counts(str(text))
        assert {cell.interval for cell in counts} == {0}
        total += sum(n for cell, n in counts.items() if cell.clock == "record")
    assert total == latency(place, TOPIC, env=env_for(place))[TOPIC].total.count + sum(
        found.without for found in latency(place, TOPIC, env=env_for(place)).values()
    )


def test_partitions_and_maps(place: str, tmp_path: Path) -> None:
    (text,) = do_part(Place(place), "check", None, json.dumps([TOPIC, 0, []]))
    done = PartDone.decode(str(text))
    assert not done.is_blind
    assert not [finding for finding in done.left if finding.counts]
    assert done.segments > 1
    cache = str(tmp_path / "cache")
    bases = list(range(10_000))
    (text,) = do_part(Place(place), "cache", cache, json.dumps([TOPIC, 0, bases]))
    there = PartDone.decode(str(text))
    assert (there.maps_there, there.maps_built) == (done.segments - 1, 0)
    (text,) = do_part(Place(place), "cache-check", cache, json.dumps([TOPIC, 0, bases]))
    checked = PartDone.decode(str(text))
    assert (checked.maps_there, list(checked.left)) == (there.maps_there, [])


def test_keys_of_records(place: str, local: str) -> None:
    with LogDir.open(local) as log_dir:
        records = list(log_dir.reader(TOPIC, 1).records())[3:9]
    offsets = [record.offset for record in records]
    work = KeyPart(places=(("a", Place(place)),), isolation=IsolationLevel.READ_UNCOMMITTED)
    text, log_bytes = work(json.dumps(["a", TOPIC, 1, "", offsets]))
    found = {cell[0].offset: cell[1:] for cell in read_cells(str(text))}
    assert found == {record.offset: (record.create_timestamp, record.key) for record in records}
    assert int(str(log_bytes)) > 0
