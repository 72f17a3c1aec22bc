"""Operations of the control channel (verbs), and validation of their arguments and results.

A verb is a function of the open directory and the request's arguments. A `TidelogError` becomes the
error of the response. This module also defines the messages of four verbs that only a broker has.
`compact` cleans one partition. `tier` moves one partition's segments to its store. `lend` gives a
cleaning job to another process, and `take_back` receives the job's result from that process.
"""

import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import (
    Any,  # noqa: TID251 - JSON, checked here
    Final,
    TypeAlias,
)

from tidelog.errors import CorruptFile, CorruptMessage, InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.compaction.cleaner import CleaningReport
from tidelog.storage.compaction.eligibility import CleaningDecision, DueReason
from tidelog.storage.compaction.job import CleaningJob, CleaningResult
from tidelog.storage.directory.attach import (
    AttachedRange,
    AttachResult,
    WriterVersion,
    attach,
    exchange,
)
from tidelog.storage.directory.log_dir import DirectoryAccess
from tidelog.storage.directory.staging import NewSegment, StagedSegment
from tidelog.storage.tier_manager.mover import MoveOptions, MoveReport, tier_partition
from tidelog.types import INT32_MAX, INT64_MAX, TopicPartition

Arguments: TypeAlias = Mapping[str, object]
Result: TypeAlias = Mapping[str, object]
Verbs: TypeAlias = Mapping[str, Callable[[DirectoryAccess, Arguments], Result]]
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)

# Name of a file in the partition's directory, without a path.
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,200}", re.ASCII)

_TOPIC: Final = re.compile(r"[0-9A-Za-z._-]{1,249}", re.ASCII)
_ORDER_MAX: Final = 16


def run(
    log_dir: DirectoryAccess, verb: str, arguments: Arguments, supported: Verbs | None = None
) -> Result:
    """Execute a request.

    Args:
        log_dir: Directory to work on.
        verb: Name of the operation.
        arguments: Unvalidated arguments.
        supported: Supported verbs; None for `VERBS`.

    Raises:
        InvalidRequest: The verb is unknown.
        CorruptMessage: The arguments are invalid, and nothing was changed.
        TidelogError: The operation failed.
    """
    operations = VERBS if supported is None else supported
    operation = operations.get(verb)
    if operation is None:
        names = ", ".join(operations)
        raise InvalidRequest(f"unknown control channel verb {verb!r}; known verbs: {names}")
    return operation(log_dir, arguments)


def holder_status(log_dir: DirectoryAccess, supported: Iterable[str]) -> dict[str, object]:
    """Return the holder's status: directory, process id, supported verbs."""
    return {"path": log_dir.path, "pid": os.getpid(), "verbs": list(supported)}


def _status(log_dir: DirectoryAccess, _: Arguments) -> Result:
    return holder_status(log_dir, VERBS)


def _flush(log_dir: DirectoryAccess, _: Arguments) -> Result:
    log_dir.flush()
    return {}


def _accept_clock(log_dir: DirectoryAccess, _: Arguments) -> Result:
    return {"accepted_ms": log_dir.accept_clock()}


def _attach(log_dir: DirectoryAccess, arguments: Arguments) -> Result:
    segments = arguments.get("segments")
    if not isinstance(segments, list):
        raise CorruptMessage("attach: `segments` must be a list")
    done = attach(
        log_dir,
        [read_segment(segment) for segment in segments],
        commit_id=_commit_id(arguments),
        version=_version(arguments.get("writer")),
    )
    return encode_attached(done)


def _swap(log_dir: DirectoryAccess, arguments: Arguments) -> Result:
    name = _partition("swap", arguments)
    bases, segments = arguments.get("bases"), arguments.get("segments")
    if not isinstance(bases, list) or not all(map(is_count, bases)):
        raise CorruptMessage(f"swap: `bases` must be a list of offsets, got {str(bases)[:80]}")
    if not isinstance(segments, list):
        raise CorruptMessage("swap: `segments` must be a list")
    new = [_read_new(segment) for segment in segments]
    return asdict(exchange(log_dir, name, bases, new, commit_id=_commit_id(arguments)))


def _erase(log_dir: DirectoryAccess, arguments: Arguments) -> Result:
    # Imports the columnar reader, which other verbs don't need.
    from tidelog.storage.erasure import erase

    topic, key, execute = (arguments.get(name) for name in ("topic", "key", "execute"))
    accepts = _accepts_lost_times("erase", arguments)
    if not is_topic(topic) or not isinstance(key, str) or not isinstance(execute, bool):
        raise CorruptMessage(
            "erase: requires a valid `topic`, a base64 `key`, and `execute` true or false;"
            f" topic is {str(topic)[:80]!r}"
        )
    try:
        key_bytes = b64decode(key, validate=True)
    except ValueError as error:
        raise CorruptMessage(f"erase: the key is not valid base64: {error}") from error
    done = erase(log_dir, str(topic), key_bytes, execute=execute, accepts_lost_times=accepts)
    return done.receipt()


def _accepts_lost_times(verb: str, arguments: Arguments) -> bool:
    """Return the argument `accepts_lost_times`; False if an older client omits the argument.

    If it is True, append times that can't be read may become unknown.
    """
    accepts = arguments.get("accepts_lost_times", False)
    if not isinstance(accepts, bool):
        raise CorruptMessage(f"{verb}: `accepts_lost_times` must be true or false")
    return accepts


def _commit_id(arguments: Arguments) -> str:
    commit_id = arguments.get("commit_id")
    if not isinstance(commit_id, str) or not _COMMIT_ID.fullmatch(commit_id):
        raise CorruptMessage(
            f"commit id must be 32 hexadecimal digits, got {str(commit_id)[:80]!r}"
        )
    return commit_id


def _partition(verb: str, arguments: Arguments) -> TopicPartition:
    topic, partition = arguments.get("topic"), arguments.get("partition")
    if not is_topic(topic) or not is_partition(partition):
        raise CorruptMessage(
            f"{verb}: invalid partition {str(topic)[:80]!r}-{str(partition)[:20]!r}"
        )
    return TopicPartition(str(topic), int(str(partition)))


VERBS: Final[Verbs] = {
    "status": _status,
    "flush": _flush,
    "accept_clock": _accept_clock,
    "attach": _attach,
    "swap": _swap,
    "erase": _erase,
}


# -- messages ------------------------------------------------------------------------------------


def encode_segment(segment: StagedSegment) -> dict[str, object]:
    """Encode a staged segment for JSON."""
    return asdict(segment)


def read_segment(fields: object) -> StagedSegment:
    """Decode a staged segment; raises CorruptMessage if it is invalid."""
    values = _checked(fields, _KINDS, "staged segment")
    return StagedSegment(**{**values, "order": tuple(values["order"])})


def _checked(
    fields: object, kinds: Mapping[str, Callable[[object], bool]], what: str
) -> dict[str, Any]:
    if not isinstance(fields, dict) or fields.keys() != kinds.keys():
        raise CorruptMessage(f"invalid {what}: {str(fields)[:200]}")
    for name, is_right in kinds.items():
        if not is_right(fields[name]):
            raise CorruptMessage(f"{what}: invalid {name} {str(fields[name])[:80]!r}")
    return fields


def is_count(value: object) -> bool:
    """Whether the value is an integer from 0 to the largest int64, inclusive."""
    return type(value) is int and 0 <= value <= INT64_MAX


def _is_time(value: object) -> bool:
    return type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX


def is_partition(value: object) -> bool:
    """Whether the value is a valid partition number."""
    return type(value) is int and 0 <= value <= INT32_MAX


def _is_order(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _ORDER_MAX and all(map(is_count, value))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_topic(value: object) -> bool:
    """Whether the value is a valid topic name."""
    return isinstance(value, str) and _TOPIC.fullmatch(value) is not None


_KINDS: Final[Mapping[str, Callable[[object], bool]]] = {
    "topic": is_topic,
    "partition": is_partition,
    "name": _is_name,
    "order": _is_order,
    "record_count": is_count,
    "size_bytes": is_count,
    "batch_bytes_max": is_count,
    "min_timestamp": _is_time,
    "max_timestamp": _is_time,
    "has_null_key": lambda value: type(value) is bool,
}


_NEW_KINDS: Final[Mapping[str, Callable[[object], bool]]] = {
    "name": _is_name,
    "base_offset": is_count,
    "size_bytes": is_count,
}


def _read_new(fields: object) -> NewSegment:
    return NewSegment(**_checked(fields, _NEW_KINDS, "segment for a swap"))


def encode_version(version: WriterVersion | None) -> object:
    """Encode the version of a writer's commit for JSON."""
    if version is None:
        return None
    start = [version.writer, version.version, version.note]
    return start if version.topics is None else [*start, list(version.topics)]


def _version(fields: object) -> WriterVersion | None:
    if fields is None:
        return None
    match fields:
        case [str(writer), int(version), str(note)] if type(version) is int:
            return WriterVersion(writer, version, note)
        case [str(writer), int(version), str(note), [*topics]] if type(version) is int:
            if all(isinstance(topic, str) for topic in topics):
                return WriterVersion(writer, version, note, tuple(map(str, topics)))
    raise CorruptMessage(
        "attach: writer must be [NAME, VERSION, NOTE] or [NAME, VERSION, NOTE, [TOPIC, ...]],"
        f" got {str(fields)[:80]!r}"
    )


def encode_attached(result: AttachResult) -> Result:
    """Encode the result of an attach for JSON."""
    return {
        "commit_id": result.commit_id,
        "record_count": result.record_count,
        "size_bytes": result.size_bytes,
        "was_done": result.was_done,
        "note": result.note,
        "skipped": dict(result.skipped),
        "partitions": [
            [name.topic, name.partition, *asdict(attached).values()]
            for name, attached in result.partitions.items()
        ],
    }


def read_attached(response: Mapping[str, object]) -> AttachResult:
    """Decode the result of an attach; raises CorruptMessage if it is invalid."""
    try:
        return AttachResult(
            str(response["commit_id"]),
            {
                TopicPartition(str(topic), partition): AttachedRange(*fields)
                for topic, partition, *fields in _rows(response["partitions"])
            },
            int(str(response["record_count"])),
            int(str(response["size_bytes"])),
            response["was_done"] is True,
            str(response["note"]),
            _read_skipped(response["skipped"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMessage(f"invalid response to attach: {str(response)[:200]}") from error


def _read_skipped(versions: object) -> dict[str, int]:
    if not isinstance(versions, dict) or not all(map(is_count, versions.values())):
        raise CorruptMessage(
            "invalid response to attach: `skipped` must map topics to versions,"
            f" got {str(versions)[:200]}"
        )
    return {str(topic): int(last) for topic, last in versions.items()}


def _rows(rows: object) -> list[list[int]]:
    if not isinstance(rows, list):
        raise CorruptMessage(
            f"invalid response to attach: `partitions` must be a list, got {str(rows)[:200]}"
        )
    return rows


_COUNTS: Final = (
    "passes",
    "segments_before",
    "segments_after",
    "bytes_before",
    "bytes_after",
    "records_before",
    "records_after",
    "bytes_read",
    "bytes_written",
    "cleaned_to",
)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a cleaning run, as sent to the client.

    Attributes:
        name: Partition of the run.
        counts: Numeric fields of `CleaningReport`, by name.
        reason: Reason why the partition was cleaned or was not cleaned.
        stopped: Reason why the run ended before the last cleanable record; None if it did not end
            early.
    """

    name: TopicPartition
    counts: Mapping[str, int]
    reason: str
    stopped: str | None


def compacted(report: CleaningReport) -> CompactionResult:
    """Convert the report of a cleaning run to the result that is sent to the client."""
    counts = {name: int(getattr(report, name)) for name in _COUNTS}
    return CompactionResult(report.name, counts, report.decision.reason, report.stopped)


@dataclass(frozen=True, slots=True)
class CompactArguments:
    """Arguments of `compact`.

    Attributes:
        name: Partition to clean.
        roll: Whether to roll the partition's active segment first.
        is_asked: Whether to clean the partition even if no cleaning is due.
    """

    name: TopicPartition
    roll: bool = False
    is_asked: bool = True


def compact_arguments(name: TopicPartition, *, roll: bool, is_asked: bool) -> dict[str, object]:
    """Encode the arguments of `compact` for JSON."""
    return {**asdict(name), "roll": roll, "is_asked": is_asked}


def read_compact_arguments(arguments: Arguments) -> CompactArguments:
    """Decode the arguments of `compact`; raises CorruptMessage."""
    name = _partition("compact", arguments)
    roll, is_asked = arguments.get("roll"), arguments.get("is_asked")
    if not isinstance(roll, bool) or not isinstance(is_asked, bool):
        raise CorruptMessage("compact: `roll` and `is_asked` must be true or false")
    return CompactArguments(name, roll, is_asked)


def encode_report(report: CleaningReport) -> Result:
    """Encode the result of a cleaning run for JSON."""
    result = compacted(report)
    return {**result.counts, "reason": result.reason, "stopped": result.stopped}


def read_compact_report(name: TopicPartition, response: Mapping[str, object]) -> CompactionResult:
    """Decode the result of a cleaning run; raises CorruptMessage if it is invalid."""
    reason, stopped = response.get("reason"), response.get("stopped")
    is_right = all(is_count(response.get(each)) for each in _COUNTS) and isinstance(reason, str)
    if not is_right or not (stopped is None or isinstance(stopped, str)):
        raise CorruptMessage(f"invalid response to compact: {str(response)[:200]}")
    counts = {each: int(str(response[each])) for each in _COUNTS}
    return CompactionResult(name, counts, str(reason), None if stopped is None else str(stopped))


_NUMBERS: Final = ("first_dirty", "end", "clean_bytes", "dirty_bytes")


def encode_lent(decision: CleaningDecision, job: CleaningJob | None) -> Result:
    """Encode a decision and its cleaning job for JSON, including the job's secret seed."""
    return {"verdict": asdict(decision), "job": None if job is None else job.to_json()}


def read_lent(response: Mapping[str, object]) -> tuple[CleaningDecision, CleaningJob | None]:
    """Decode a cleaning decision and its job; the job is None if nothing will be cleaned.

    Raises CorruptMessage if the response is invalid.
    """
    try:
        match response:
            case {"verdict": dict(decision), "job": None | str() as job}:
                lent_job = None if job is None else CleaningJob.from_json(job)
                return _decision(decision), lent_job
    except (CorruptFile, KeyError, TypeError, ValueError) as error:
        raise CorruptMessage(f"invalid response to lend: {error}") from error
    raise CorruptMessage(f"invalid response to lend: {str(response)[:200]}")


def _decision(fields: Mapping[str, object]) -> CleaningDecision:
    first_dirty, end, clean_bytes, dirty_bytes = (int(str(fields[name])) for name in _NUMBERS)
    due = fields["due"]
    return CleaningDecision(
        first_dirty=first_dirty,
        end=end,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        due=None if due is None else DueReason(str(due)),
        reason=str(fields["reason"]),
        is_reset=fields["is_reset"] is True,
    )


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Result of a cleaning job. `seed` identifies the job."""

    name: TopicPartition
    seed: bytes
    cleaned: CleaningResult


def take_back(job: CleaningJob, cleaned: CleaningResult) -> dict[str, object]:
    """Encode the result of a cleaning job for JSON."""
    return {
        "topic": job.topic,
        "partition": job.partition,
        "seed": job.seed.hex(),
        "cleaned": cleaned.to_json(),
    }


def read_take_back(arguments: Arguments) -> TakeBack:
    """Decode the result of a cleaning job; raises CorruptMessage."""
    name = _partition("take_back", arguments)
    cleaned, seed = arguments.get("cleaned"), arguments.get("seed")
    if not isinstance(cleaned, str) or not isinstance(seed, str):
        raise CorruptMessage("take_back: `seed` and `cleaned` must be strings")
    try:
        cleaned_files, named = CleaningResult.from_json(cleaned), bytes.fromhex(seed)
    except (CorruptFile, ValueError) as error:
        raise CorruptMessage(f"take_back: {error}") from error
    return TakeBack(name, named, cleaned_files)


def tier_arguments(name: TopicPartition, options: MoveOptions) -> dict[str, object]:
    """Encode the arguments of `tier` for JSON, without `on_copied`."""
    fields = asdict(replace(options, on_copied=None))
    del fields["on_copied"]
    return {**asdict(name), **fields}


def read_tier_arguments(
    arguments: Arguments, on_copied: Callable[[int], None]
) -> tuple[TopicPartition, MoveOptions]:
    """Decode the partition and options of `tier`; raises CorruptMessage.

    Args:
        arguments: Unvalidated arguments.
        on_copied: Called after each segment with the number of log bytes copied so far.
    """
    name = _partition("tier", arguments)
    url, grace_ms = arguments.get("url"), arguments.get("grace_ms")
    flags = [arguments.get(each) for each in ("takes_over", "drops_theirs", "roll")]
    if not (url is None or isinstance(url, str)) or not is_count(grace_ms):
        raise CorruptMessage(
            "tier: `url` must be text or null, and `grace_ms` a number from 0, got"
            f" {str(url)[:80]!r} and {str(grace_ms)[:20]!r}"
        )
    if not all(isinstance(flag, bool) for flag in flags):
        raise CorruptMessage("tier: `takes_over`, `drops_theirs` and `roll` must be true or false")
    takes_over, drops_theirs, roll = map(bool, flags)
    options = MoveOptions(
        url=url,
        grace_ms=int(str(grace_ms)),
        takes_over=takes_over,
        drops_theirs=drops_theirs,
        roll=roll,
        accepts_lost_times=_accepts_lost_times("tier", arguments),
        on_copied=on_copied,
    )
    return name, options


def run_tier(log_dir: "DirectoryAccess", name: TopicPartition, options: MoveOptions) -> Result:
    """Move a partition's segments to its store; raises the errors of `tier_partition`."""
    report = tier_partition(log_dir, name, options)
    return {
        "copied": report.copied,
        "copied_bytes": report.copied_bytes,
        "deleted": report.deleted_count,
        "released": report.released,
        "removed": report.removed,
        "stopped": report.stopped,
    }


def read_tier_report(name: TopicPartition, response: Mapping[str, object]) -> MoveReport:
    """Decode the result of `tier`; raises CorruptMessage if it is invalid."""
    names = ("copied", "copied_bytes", "deleted", "released", "removed")
    stopped = response.get("stopped")
    is_right = all(is_count(response.get(each)) for each in names)
    if not is_right or not (stopped is None or isinstance(stopped, str)):
        raise CorruptMessage(f"invalid response to tier: {str(response)[:200]}")
    copied, copied_bytes, deleted, released, removed = (int(str(response[each])) for each in names)
    return MoveReport(
        topic_partition=name,
        copied=copied,
        copied_bytes=copied_bytes,
        reported_deleted=deleted,
        released=released,
        removed=removed,
        stopped=stopped,
    )
