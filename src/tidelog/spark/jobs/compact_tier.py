"""Compaction of a partition's tier by tasks of Spark.

The driver holds the directory's lock, makes the job, and changes the manifest. A task reads its
part of the log from the store, cleans it in a temporary folder of its own machine, and copies what
is left into the store, under names that it draws: another attempt at the same part draws others,
and what the driver does not hear of are orphans, which `tidelog tier --collect` removes. Parts are
done in rounds, the oldest offsets first; what a round has made is in the manifest before the next
one begins, so a run that was killed goes on from a tier that is compacted up to there.

Tasks need the store, and the directory under its path, of which they read the partition's record.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tidelog.errors import CleaningFailed
from tidelog.objects.environment import env_for
from tidelog.spark.jobs.latency import parallelism
from tidelog.spark.jobs.parts import do_parts
from tidelog.spark.session import our_words
from tidelog.storage.compaction.job import CleaningJob
from tidelog.storage.compaction.job_parts import parts_of
from tidelog.storage.log_dir import LogDir
from tidelog.storage.tiering.cleaning import Rewritten, TierCleaner
from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.storage.tiering.rewriting import Workplace
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.storage.tiers.rows import decode_row, encode_row
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REWRITTEN: Final = "rewritten string"
# Parts of a round for each task that runs at a time: a slow one holds up the others of its round.
_ROUND: Final = 4
# Over Spark Connect nobody says how many tasks run at a time.
_ROUND_MIN: Final = 64


@dataclass(frozen=True, slots=True)
class TierTasks:
    """Carries a job over a tier out by tasks of Spark; a `TierWorker`.

    Attributes:
        spark: The session.
        directory: The directory of topics.
        store: Settings of the store.
        part_bytes: About how many bytes of log a task rewrites, at most.
    """

    spark: "SparkSession"
    directory: str
    store: Mapping[str, str]
    part_bytes: int

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        """See `TierWorker`.

        Raises:
            CleaningFailed: A task failed for good; its words.
        """
        is_divisible = _is_plain(job, segments) and not job.rules.has_versions
        parts = [
            _encode(part, segments)
            for part in parts_of(job, self.part_bytes if is_divisible else None)
        ]
        at_once = max(_ROUND * parallelism(self.spark), _ROUND_MIN)
        work = TierPart(self.directory, tuple(self.store.items()))
        for start in range(0, len(parts), at_once):
            with failing_with_our_words(job):
                rows = do_parts(self.spark, parts[start : start + at_once], work, _REWRITTEN)
            for row in rows:
                yield Rewritten.from_json(str(row["rewritten"]))


def _is_plain(job: CleaningJob, segments: Mapping[int, RemoteSegment]) -> bool:
    """Whether no transaction is in the job's segments."""
    totals = [segments[source.base_offset].row.total for source in job.sources]
    return not any(total.is_transactional or total.control_records for total in totals)


def _encode(part: CleaningJob, segments: Mapping[int, RemoteSegment]) -> str:
    """A part, with the rows of its sources: some may have left the manifest when it is done."""
    rows = [encode_row(segments[source.base_offset].row) for source in part.sources]
    return json.dumps([part.to_json(), rows])


@contextmanager
def failing_with_our_words(job: CleaningJob) -> Iterator[None]:
    """Raise CleaningFailed with what a task says, where it is an error of ours."""
    try:
        yield
    except Exception as error:
        words = our_words(str(error))
        if words is None:
            raise
        raise CleaningFailed(f"{job.topic}-{job.partition}: {words[1]}") from error


@dataclass(frozen=True, slots=True)
class TierPart:
    """Does a part of a job; a `Work`.

    Attributes:
        directory: The directory of topics.
        store: Settings of the store.
    """

    directory: str
    store: tuple[tuple[str, str], ...]

    def __call__(self, part: str) -> tuple[object, ...]:
        """See `Work`; `part` is a JSON list: a job, and the rows of its sources."""
        text, rows = json.loads(part)
        job, env = CleaningJob.from_json(text), env_for(self.directory, None, dict(self.store))
        with (
            LogDir.open(self.directory, env=env) as log_dir,
            TemporaryDirectory(prefix="tidelog-compact-") as folder,
        ):
            name = TopicPartition(job.topic, job.partition)
            log = log_dir.reader(name.topic, name.partition)
            view = log.tier
            if view is None:
                raise CleaningFailed(f"{self.directory}: {name} has no tier here")
            cleaner = TierCleaner(
                place=Workplace(log, folder),
                tier=PartitionTier(log_dir.tier_files.store(view.record.url), view.record.folder),
                tier_files=log_dir.tier_files,
                draw_uid=lambda: f"{env.random.getrandbits(128):032x}",
            )
            segments = [view.segment(decode_row(row)) for row in rows]
            found = cleaner.rewritten(job, {each.base_offset: each for each in segments})
        return (found.to_json(),)
