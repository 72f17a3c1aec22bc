"""Counts what groups have not read, by hour: in a directory's splits, or as brokers send it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.lag import Observation
from tidelog.scan.plan import plan
from tidelog.scan.split import Wanted
from tidelog.scan.split_json import encode_split
from tidelog.spark.jobs import lag_work
from tidelog.spark.jobs.chunks import Span, offsets_options
from tidelog.spark.jobs.latency import JOB_SPLIT_BYTES, directory_env, parallelism
from tidelog.spark.jobs.parts import do_parts
from tidelog.spark.jobs.progress import Listener
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS: Final = "counts string"
_BROKER_COLUMNS: Final = "topic,partition,offset,timestamp,timestampType"

# Topic and partition.
Name = tuple[str, int]


def cuts_of(seen: Mapping[str, Sequence[Observation]]) -> dict[Name, tuple[int, ...]]:
    """Where each partition is cut: at all places and ends that groups which are behind have there.

    Partitions of which everybody has read everything are left out.
    """
    places: dict[Name, set[int]] = {}
    for observations in seen.values():
        for one in observations:
            if one.next_offset < one.end:
                name = (one.partition.topic, one.partition.partition)
                places.setdefault(name, set()).update((one.next_offset, one.end))
    return {name: tuple(sorted(cuts)) for name, cuts in places.items()}


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts what nobody of a group has read yet."""

    spark: "SparkSession"
    place: Place
    directory: str
    isolation: IsolationLevel
    listener: Listener

    def count(
        self,
        cuts: Mapping[Name, tuple[int, ...]],
        own: set[TopicPartition],
    ) -> tuple[lag_work.Counts, Mapping[Name, int]]:
        """Records by interval and hour; and up to where each partition was counted."""
        ours = {name: cut for name, cut in cuts.items() if TopicPartition(*name) in own}
        theirs = {name: cut for name, cut in cuts.items() if name not in ours}
        counts, counted_ends = self._in_directory(ours)
        ends = {name: cut[-1] for name, cut in theirs.items()}
        return counts + self._at_brokers(theirs), ends | counted_ends

    def _in_directory(
        self, cuts: Mapping[Name, tuple[int, ...]]
    ) -> tuple[lag_work.Counts, dict[Name, int]]:
        if not cuts:
            return Counter(), {}
        store = () if self.place.is_broker else tuple(self.place.store.items())
        env = directory_env(Place(self.directory, store=dict(store)))
        wanted = {
            TopicPartition(*name): Wanted(start_offset=cut[0], end_offset=cut[-1])
            for name, cut in cuts.items()
        }
        planned = plan(
            self.directory,
            list(wanted),
            per_partition=wanted,
            isolation=self.isolation,
            columns=lag_work.COLUMNS,
            split_bytes=JOB_SPLIT_BYTES,
            min_partitions=parallelism(self.spark),
            fail_on_data_loss=False,
            env=env,
        )
        parts = [
            json.dumps([encode_split(split), cuts[split.topic, split.partition]])
            for split in planned.splits
        ]
        self.listener.note(f"counting unread records in {self.directory}: {len(parts)} tasks")
        work = lag_work.CountSplit(store)
        rows = do_parts(self.spark, parts, work, _COUNTS, listener=self.listener)
        found = {(name.topic, name.partition): end for name, (_, end) in planned.bounds.items()}
        return _added(str(row["counts"]) for row in rows), found

    def _at_brokers(self, cuts: Mapping[Name, tuple[int, ...]]) -> lag_work.Counts:
        if not cuts:
            return Counter()
        spans = [Span(TopicPartition(*name), cut[0], cut[-1]) for name, cut in cuts.items()]
        self.listener.note(f"counting unread records at {self.place}")
        table = (
            self.spark.read.format("tidelog")
            .options(**self.place.options())
            .options(**{name: json.dumps(value) for name, value in offsets_options(spans).items()})
            .option("columns", _BROKER_COLUMNS)
            .option("isolation", self.isolation.name.lower())
            .option("failOnDataLoss", "false")
            .load()
        )
        rows = table.mapInArrow(lag_work.CountRows(dict(cuts)), _COUNTS).collect()
        return _added(str(row["counts"]) for row in rows)


def _added(texts: Iterable[str]) -> lag_work.Counts:
    total: lag_work.Counts = Counter()
    for text in texts:
        total.update(lag_work.decode_counts(text))
    return total
