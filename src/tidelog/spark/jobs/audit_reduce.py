"""What a worker does for an audit first: reads a part of one side, and reduces it to rows by key.

Nothing but the note of the run comes back to the driver; the rows stay in the folder.
"""

import json
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import Env, os_env
from tidelog.scan.key_tables import COLUMNS, ROWS_MAX, Reducer
from tidelog.scan.split_json import decode_split
from tidelog.scan.stats import ScanStats
from tidelog.spark.jobs.audit_files import write_rows
from tidelog.spark.jobs.audit_state import ROWS_SUFFIX, SEED_BYTES, Run, decode_run, encode_run
from tidelog.spark.places import Place
from tidelog.spark.workers import prepare_digests
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs
    from tidelog.spark.broker_tasks import BrokerTask

REDUCED: Final = "run string"
_SEEDS: Final = struct.Struct("<5q")
assert _SEEDS.size == SEED_BYTES


def seeds_of(seed: bytes) -> "Longs":
    """The words that the kernels take."""
    return np.array(_SEEDS.unpack(seed), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducePart:
    """Reads a part and reduces it; a `Work`.

    Attributes:
        places: Of both sides, by letter.
        folder: Where rows go.
        seed: Of the hashes.
        span_ms: Length of a span of time.
        isolation: What is seen of transactions.
        times: Range of record timestamps in ms, [start, end); of brokers.
        rows_max: Keys that a task holds at a time.
    """

    places: tuple[tuple[str, Place], ...]
    folder: str
    seed: bytes
    span_ms: int
    isolation: IsolationLevel
    times: tuple[int, int] | None = None
    rows_max: int = ROWS_MAX

    def __call__(self, part: str) -> tuple[object, ...]:
        """See `Work`; `part` is a JSON list: a run, and its split as text or null."""
        prepare_digests()
        fields, split = json.loads(part)
        run, env, stats = decode_run(fields), os_env(), ScanStats()
        hand_out = _Files(env, self.folder)
        seeds = seeds_of(self.seed)
        reducer = Reducer(seeds, run.partition, self.span_ms, hand_out, rows_max=self.rows_max)
        self._read(run, split, stats, reducer)
        reducer.finish()
        return (encode_run(_noted(run, reducer, hand_out, stats)),)

    def _read(self, run: Run, split: str | None, stats: ScanStats, reducer: Reducer) -> None:
        place = dict(self.places)[run.side]
        if split is None:
            task = broker_task(place, run, run.start, run.end, self.isolation, COLUMNS)
            for batch in replace(task, time_range=self.times).read():
                reducer.add(batch)
            return
        from tidelog.objects.environment import env_for
        from tidelog.scan.reader import ReadOptions, read

        one = decode_split(split)
        env = env_for(one.directory, None, dict(place.store))
        options = ReadOptions(fail_on_data_loss=False, env=env, fold=reducer)
        for _ in read(one, COLUMNS, options=options, stats=stats):
            raise AssertionError("the reducer takes all")


class _Files:
    """Writes rows to files with names of their own: a task that is tried again writes others."""

    def __init__(self, env: Env, folder: str) -> None:
        self._env, self._folder = env, folder
        self._stem = f"{env.random.getrandbits(64):016x}"
        self.names: list[str] = []
        self.rows = 0

    def __call__(self, rows: "Longs") -> None:
        name = f"{self._stem}-{len(self.names)}{ROWS_SUFFIX}"
        write_rows(self._env, f"{self._folder}/{name}", rows)
        self.names.append(name)
        self.rows += len(rows)


def _noted(run: Run, reducer: Reducer, files: _Files, stats: ScanStats) -> Run:
    return replace(
        run,
        files=tuple(files.names),
        rows=files.rows,
        records=reducer.records,
        unkeyed=reducer.unkeyed,
        unkeyed_sum=reducer.unkeyed_sum,
        untimed=reducer.untimed,
        span_ms=reducer.spans.span_ms,
        spans=tuple(reducer.spans.items()),
        log_bytes=stats.log_bytes,
        lost=tuple(map(str, stats.lost)),
    )


def broker_task(  # noqa: PLR0913 - what is read, of whom, and how
    place: Place,
    run: Run,
    start: int,
    end: int,
    isolation: IsolationLevel,
    columns: tuple[str, ...],
    *,
    fail_on_data_loss: bool = True,
) -> "BrokerTask":
    """What reads offsets [start, end) of a run's partition from brokers.

    An audit that misses records says nothing of what it is asked: loss is an error.
    """
    from tidelog.spark.broker_tasks import BrokerTask
    from tidelog.spark.source_options import SourceOptions

    options = SourceOptions(
        bootstrap=place.address,
        client=place.client,
        isolation=isolation,
        columns=columns,
        fail_on_data_loss=fail_on_data_loss,
    )
    return BrokerTask(
        name=TopicPartition(run.topic, run.partition),
        start_offset=start,
        end_offset=end,
        topic_id=run.topic_id,
        columns=columns,
        options=options,
    )
