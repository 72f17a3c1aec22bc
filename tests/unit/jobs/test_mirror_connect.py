"""A mirror over Spark Connect: batches that the server writes, their reports, and a stop."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.worlds.directories.topics import append, held, make
from tests.worlds.spark.frames import frame, origin_batch, value

from tidelog.env import os_env
from tidelog.errors import DirectoryLocked
from tidelog.jobs.mirror.commit import ClientBatches, ServerBatches
from tidelog.jobs.mirror.places import find_targets, first_map, read_sources
from tidelog.jobs.mirror.plan import MAP_FILE, MirrorState, plan_mirror
from tidelog.jobs.mirror.run import Mirror
from tidelog.jobs.offset_map import read_map, write_map
from tidelog.types import NewRecord

MIRROR_ID = "f" * 32


class Sides:
    """The server's side and the client's side of a mirror of one partition with five records."""

    def __init__(self, folder: Path) -> None:
        source, self.target = make(f"{folder}/a", "orders"), make(f"{folder}/b", "orders")
        append(source, "orders", 0, [NewRecord(value=value(0, n)) for n in range(5)])
        checkpoint = folder / "m"
        checkpoint.mkdir()
        self.path, env = f"{checkpoint}/{MAP_FILE}", os_env()
        plan = plan_mirror([source], ["orders"], self.target, checkpoint=str(checkpoint))
        sources = read_sources(plan, env)
        targets, _ = find_targets(plan, sources, env, create=False, force=False, is_new_from=0)
        write_map(env.files, self.path, first_map(plan, sources, targets, ((0, 0, 0),)))
        MirrorState(mirror_id=MIRROR_ID, question={}, starts=()).save(env, str(checkpoint))
        self._plan = plan
        self._options = {
            "checkpoint": str(checkpoint),
            "create": False,
            "force": False,
            "settings": "report",
            "sink_options": None,
        }
        self.listed: list[tuple[int, int]] = []  # (batch id, number of its records)
        self.server = self.open_server()
        self.client = ClientBatches(
            plan=plan,
            path=self.path,
            env=env,
            watch=lambda done: self.listed.append((done.batch_id, done.records)),
        )

    def open_server(self) -> ServerBatches:
        """Return a writer of the server without any state of earlier batches."""
        return ServerBatches(plan=self._plan, options=self._options, mirror_id=MIRROR_ID)  # type: ignore[arg-type] # only the options that it uses

    def write(self, number: int) -> None:
        """Write a batch of one record on the server."""
        self.server(frame([origin_batch("orders", 0, [number])]), number)

    def written(self) -> list[bytes | None]:
        return [record.value for record in held(self.target, "orders")[0]]


def test_each_batch_is_listed_when_it_is_written(tmp_path: Path) -> None:
    sides = Sides(tmp_path)
    for number in range(3):
        sides.write(number)
        sides.client.report_done()
        assert sides.listed == [(n, 1) for n in range(number + 1)]
    assert sides.written() == [value(0, n) for n in range(3)]


def test_a_stop_refuses_batches_until_the_query_has_ended(tmp_path: Path) -> None:
    sides = Sides(tmp_path)
    sides.write(0)
    refused: list[str] = []

    def stop() -> None:
        with pytest.raises(DirectoryLocked, match="batch 1 will be retried") as caught:
            sides.write(1)
        refused.append(str(caught.value))

    query = SimpleNamespace(isActive=True, stop=stop)
    started = SimpleNamespace(current=query)
    sides.client.started = started  # type: ignore[assignment] # a stand-in
    Mirror(
        started=started,  # type: ignore[arg-type] # a stand-in
        batches=sides.client,
        findings=(),
        notes=(),
        start_map=read_map(os_env().files, sides.path),
        was_resumed=False,
    ).stop()
    assert len(refused) == 1
    assert sides.listed == [(0, 1)]
    sides.write(1)
    assert sides.written() == [value(0, 0), value(0, 1)]


def test_a_batch_continues_from_the_batches_of_another_query(tmp_path: Path) -> None:
    """A query that was restarted on the server has written the previous batch."""
    sides = Sides(tmp_path)
    sides.write(0)
    first, sides.server = sides.server, sides.open_server()
    sides.write(1)
    sides.server = first
    sides.write(2)
    written = read_map(os_env().files, sides.path)
    assert written.batch_id == 2
    assert [(row.source_start, row.target_start) for row in written.rows] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
