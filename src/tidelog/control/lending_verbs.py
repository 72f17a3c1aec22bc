"""The verbs `lend` and `take_back`: a cleaning's job for others, and what they have made of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from tidelog.control.verbs import Arguments, Result, is_partition, is_topic
from tidelog.errors import CorruptFile, CorruptMessage
from tidelog.storage.compaction.eligibility import DueReason, Verdict
from tidelog.storage.compaction.job import Cleaned, CleaningJob
from tidelog.types import TopicPartition

_NUMBERS: Final = ("first_dirty", "end", "clean_bytes", "dirty_bytes")


def encode_lent(verdict: Verdict, job: CleaningJob | None) -> Result:
    """What was found, and the job, as JSON; it holds the cleaning's secret seed."""
    return {"verdict": asdict(verdict), "job": None if job is None else job.to_json()}


def read_lent(told: Mapping[str, object]) -> tuple[Verdict, CleaningJob | None]:
    """The same from JSON; raises CorruptMessage for what is none."""
    try:
        match told:
            case {"verdict": dict(verdict), "job": None | str() as job}:
                found = None if job is None else CleaningJob.from_json(job)
                return _verdict(verdict), found
    except (CorruptFile, KeyError, TypeError, ValueError) as error:
        raise CorruptMessage(f"no answer to lend: {error}") from error
    raise CorruptMessage(f"no answer to lend: {str(told)[:200]}")


def _verdict(told: Mapping[str, object]) -> Verdict:
    first_dirty, end, clean_bytes, dirty_bytes = (int(str(told[name])) for name in _NUMBERS)
    due = told["due"]
    return Verdict(
        first_dirty=first_dirty,
        end=end,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        due=None if due is None else DueReason(str(due)),
        reason=str(told["reason"]),
        is_reset=told["is_reset"] is True,
    )


@dataclass(frozen=True, slots=True)
class TakeBack:
    """What was made of a job, which its seed names."""

    name: TopicPartition
    seed: bytes
    cleaned: Cleaned


def take_back(job: CleaningJob, cleaned: Cleaned) -> dict[str, object]:
    """What was made, as JSON."""
    return {
        "topic": job.topic,
        "partition": job.partition,
        "seed": job.seed.hex(),
        "cleaned": cleaned.to_json(),
    }


def read_take_back(arguments: Arguments) -> TakeBack:
    """What was made, from outside; raises CorruptMessage."""
    topic, partition = arguments.get("topic"), arguments.get("partition")
    cleaned, seed = arguments.get("cleaned"), arguments.get("seed")
    if not is_topic(topic) or not is_partition(partition):
        raise CorruptMessage(f"take_back: no partition {str(topic)[:80]!r}-{str(partition)[:20]!r}")
    if not isinstance(cleaned, str) or not isinstance(seed, str):
        raise CorruptMessage("take_back: `seed` and `cleaned` are texts")
    try:
        found, named = Cleaned.from_json(cleaned), bytes.fromhex(seed)
    except (CorruptFile, ValueError) as error:
        raise CorruptMessage(f"take_back: {error}") from error
    return TakeBack(TopicPartition(str(topic), int(str(partition))), named, found)
