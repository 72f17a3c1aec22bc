"""A continuous mirror of all topics that match a pattern, with new topics and partitions."""

import io
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.jobs.test_mirror import some
from tests.spark.maps import check_map, map_of
from tests.worlds.directories.topics import append, grow, held, make, plain

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory
from tidelog.jobs.mirror.job import mirror
from tidelog.jobs.mirror.plan import MirrorSource
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.jobs.mirror.options import BatchDone


@dataclass(slots=True)
class Story:
    """Changes at the source after each batch, made in the mirror's callback."""

    source: str
    stopped: threading.Event
    done: "list[BatchDone]" = field(default_factory=list)

    def __call__(self, done: "BatchDone") -> None:
        self.done.append(done)
        if len(self.done) == 1:
            make(self.source, "shop.bills", 1)
            append(self.source, "shop.bills", 0, some(0, 0, 20))
        elif len(self.done) == 2:
            grow(self.source, "shop.orders", 3)
            append(self.source, "shop.orders", 2, some(2, 0, 30))
        else:
            self.stopped.set()


def test_new_topics_and_partitions_are_copied(spark: "SparkSession", tmp_path: Path) -> None:
    """A mirror copies two sources, one chosen by a pattern, and continues after a stop."""
    one, two = make(f"{tmp_path}/a", "shop.orders", 2), make(f"{tmp_path}/c", "old", 1)
    make(one, "other")
    append(one, "shop.orders", 1, some(1, 0, 40))
    append(two, "old", 0, some(9, 0, 10))
    target, work = f"{tmp_path}/b", f"{tmp_path}/check"
    Directory.open(target, writable=True).close()
    sources = [
        MirrorSource(Place.parse(two), {"old": "east.shop.orders"}),
        MirrorSource(Place.parse(one), pattern=r"shop\..*", name="east.{topic}"),
    ]
    stopped = threading.Event()
    story = Story(one, stopped)
    given = {"checkpoint": work, "create": True}
    mirror(
        spark,
        sources,
        (),
        target,
        continuous=True,
        stopped=stopped,
        trigger_ms=0,
        watch=story,
        **given,  # type: ignore[arg-type] # options by name
    )
    notes = [note for done in story.done for note in done.notes]
    assert [note.split(" of ")[0] for note in notes] == ["shop.bills", "shop.orders"]
    append(one, "shop.bills", 0, some(0, 20, 5))
    rows = mirror(spark, sources, (), target, **given).collect()  # type: ignore[arg-type] # as above
    assert all(row.lag == 0 for row in rows)
    assert {row.target_topic for row in rows} == {"east.shop.orders", "east.shop.bills"}
    bills = held(target, "east.shop.bills")
    assert list(map(plain, bills)) == list(map(plain, held(one, "shop.bills")))
    orders = held(target, "east.shop.orders")
    assert plain(orders[2]) == plain(held(one, "shop.orders")[2])
    assert plain(orders[1]) == plain(held(one, "shop.orders")[1])
    assert plain(orders[0]) == plain(held(two, "old")[0])
    found = map_of(work)
    into_orders = {place: end for place, end in found.ends.items() if "orders" in place.topic}
    originals = {0: held(two, "old"), 1: held(one, "shop.orders")}
    check_map(replace(found, ends=into_orders), originals, orders)
    assert found.sources[2].topic == "shop.bills"
    ends = {place: end for place, end in found.ends.items() if place.topic.endswith("bills")}
    check_map(replace(found, ends=ends), {2: held(one, "shop.bills")}, bills, exactly=True)


def test_the_command_accepts_patterns_and_settings(spark: "SparkSession", tmp_path: Path) -> None:
    source = make(f"{tmp_path}/a", "shop.orders", 1, segment_bytes="1048576")
    make(source, "shop.test", 1)
    append(source, "shop.orders", 0, some(0, 0, 4))
    target = make(f"{tmp_path}/b", "e.shop.orders", 1)
    out, err = io.StringIO(), io.StringIO()
    arguments = ["spark", "mirror", source, "--to", target, "--checkpoint", f"{tmp_path}/check"]
    arguments += ["--pattern", r"shop\..*", "--exclude", ".*test", "--name", "e.{topic}"]
    arguments += ["--settings", "sync"]
    assert run(arguments, Surroundings(stdout=out, stderr=err)) == 0, err.getvalue()
    assert "e.shop.orders" in out.getvalue()
    assert "shop.test" not in out.getvalue()
    assert "segment.bytes=1073741824 (source: 1048576)" in err.getvalue()
    with Directory.open(target) as directory:
        assert directory.topic("e.shop.orders").given["segment.bytes"] == "1048576"
        assert list(directory.topics()) == ["e.shop.orders"]
    arguments[2:3] = [source, "shop.orders"]
    del arguments[arguments.index("--pattern") : arguments.index("--exclude")]
    assert run(arguments, Surroundings(stdout=out, stderr=err)) == 3
    assert "apply to topics that a --pattern finds" in err.getvalue()
