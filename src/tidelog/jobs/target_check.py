"""Check whether a target topic would refuse or lose records that a job will write.

This module has the findings, and the description of a target: partitions and settings of a topic in
a directory or at brokers. The topic either exists, or the job will create it (`place_topics`).
Before a job starts, `check` compares the topic's settings with the known properties of the records:

- `message.timestamp.type=LogAppendTime` replaces every create time by the append time;
- `message.timestamp.before.max.ms` and `.after.max.ms` refuse batches whose times are too far from
  the current time;
- `max.message.bytes` refuses large batches, and `cleanup.policy=compact` refuses records without a
  key;
- retention by time deletes old records as soon as their segment is finished; retention by size
  deletes the oldest records if all records together exceed the limit.

A finding is either a note, or a loss (`is_loss`): records or their create times would be lost. A
loss stops a job unless the option `force` is true.

Source: KIP-32, KIP-33; docs/jobs.md, docs/retention.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tidelog.amounts import plural, verb
from tidelog.config import RetentionClock, TopicConfig
from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.view import Count
from tidelog.spark.parts import Listener
from tidelog.timespec import format_ms
from tidelog.types import INT64_MAX, TimestampType

# Function that returns the number of records with create times in [start, end), or None if the
# number is unknown. Both times are in ms; a time that is None does not limit the range.
Between = Callable[[int | None, int | None], Count | None]


class Effect(StrEnum):
    """Effect that a finding reports: what happens to the records."""

    OVERWRITTEN = "create times overwritten"
    REFUSED = "refused"
    DELETED = "deleted at once"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic that a job will write to.

    Attributes:
        place: Name of the directory or cluster, for messages.
        topic: Name of the topic.
        partitions: Number of partitions.
        config: Settings that apply to the topic.
        end_offset: Sum of the end offsets of all partitions; 0 if the topic never had a record.
        created_with: Settings with which the job creates the topic; None for an existing topic.
    """

    place: str
    topic: str
    partitions: int
    config: TopicConfig
    end_offset: int = 0
    created_with: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.topic} at {self.place}"


def _unknown(_start_ms: int | None, _end_ms: int | None) -> Count | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWrite:
    """Known properties of the records that a job will write; None for an unknown property.

    Attributes:
        records: Number of records.
        between: Function that returns the number of records with create times in a range; see
            `Between`.
        null_keys: Number of records without a key.
        size_bytes: Approximate size in bytes of all records as batches.
        batch_bytes_max: Maximum size of a batch in bytes.
        partitions: Minimum number of partitions of the topic with which records can keep their
            partition's number; None if they need not keep it.
        has_times: Whether at least one record has a create time of its own. A record without a
            create time gets the time of the write.
    """

    records: Count | None = None
    between: Between = _unknown
    null_keys: Count | None = None
    size_bytes: int | None = None
    batch_bytes_max: int | None = None
    partitions: int | None = None
    has_times: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of a check of the target before a job starts.

    Attributes:
        effect: Effect on the records.
        setting: Setting of the topic that causes the effect, as `name=value`.
        text: Description of the effect for the user, and of what to do.
        records: Number of affected records; None if unknown.
        remedy: Setting that prevents the loss, as `name=value`; empty if no setting does.
        topic: Name of the target topic.
    """

    effect: Effect
    setting: str
    text: str
    records: Count | None = None
    remedy: str = ""
    topic: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether records or their create times would be lost."""
        return self.effect is not Effect.NOTE

    def __str__(self) -> str:
        return f"{self.setting}: {self.text}"


class TargetLoses(InvalidRequest):
    """Raised if the target would refuse or lose records; nothing was written.

    Attributes:
        target: The target.
        findings: All findings, including notes.
    """

    def __init__(self, target: Target, findings: Sequence[Finding]) -> None:
        self.target = target
        self.findings = tuple(findings)
        losses = "; ".join(str(finding) for finding in findings if finding.is_loss)
        super().__init__(f"{target}: {losses}")


def check(target: Target, load: ExpectedWrite, now_ms: int) -> list[Finding]:
    """Return findings on how the target's settings affect the expected records, losses first.

    Args:
        target: The target topic.
        load: Known properties of the expected records.
        now_ms: Current time on the target's clock, in ms.
    """
    findings = [*_partitions(target, load), *_batch_size(target.config, load)]
    findings += [*_keys(target.config, load), *_size(target, load)]
    if load.has_times:
        findings += _timestamp_type(target, load)
        findings += _limits(target.config, load, now_ms)
        findings += _age(target.config, load, now_ms)
    named = [replace(finding, topic=target.topic) for finding in findings]
    return sorted(named, key=lambda finding: not finding.is_loss)


def thresholds(config: TopicConfig, now_ms: int) -> list[int]:
    """Return the bounds in ms of the time ranges in which `check` counts records.

    With these bounds, a job can count the records of all ranges in one pass before it calls
    `check`.
    """
    times: list[int] = []

    def note(start_ms: int | None, end_ms: int | None) -> Count | None:
        times.extend(side for side in (start_ms, end_ms) if side is not None)
        return None

    target = Target(place="", topic="", partitions=1, config=config)
    check(target, ExpectedWrite(between=note), now_ms)
    return times


def ensure(target: Target, findings: Sequence[Finding], *, force: bool) -> None:
    """Raise TargetLoses if a finding is a loss and `force` is false."""
    if not force and any(finding.is_loss for finding in findings):
        raise TargetLoses(target, findings)


def ensure_keeps(
    target: Target, load: ExpectedWrite, now_ms: int, *, force: bool, listener: Listener
) -> tuple[Finding, ...]:
    """Check a target, report the findings to the listener, and return the findings.

    Raises:
        TargetLoses: Records or their create times would be lost, and `force` is false.
    """
    findings = tuple(check(target, load, now_ms))
    ensure(target, findings, force=force)
    for line in lines(findings):
        listener.note(line)
    return findings


def count_text(count: Count | None) -> str:
    """Return a number of records as text, such as `12 records` or `up to 12 records`.

    An estimate becomes `about 12 records`, and an unknown number becomes `records`.
    """
    if count is None:
        return "records"
    bound = "" if count.is_exact else "up to " if count.is_bound else "about "
    return f"{bound}{plural(count.records, 'record')}"


def _partitions(target: Target, load: ExpectedWrite) -> Iterator[Finding]:
    if load.partitions is None or load.partitions <= target.partitions:
        return
    yield Finding(
        effect=Effect.REFUSED,
        setting=f"partitions={target.partitions}",
        text=f"records keep their partition's number, and need partitions 0 to"
        f" {load.partitions - 1}, but the target has {plural(target.partitions, 'partition')};"
        " choose partitions by key, or add partitions",
    )


def _timestamp_type(target: Target, load: ExpectedWrite) -> Iterator[Finding]:
    if _is_stamped(target.config):
        yield Finding(
            effect=Effect.OVERWRITTEN,
            setting="message.timestamp.type=LogAppendTime",
            text=f"the create times of {count_text(load.records)} would be overwritten by the time"
            " of the append; set message.timestamp.type=CreateTime to keep them",
            records=load.records,
            remedy="message.timestamp.type=CreateTime",
        )


def _is_stamped(config: TopicConfig) -> bool:
    """Return whether the log replaces create times by append times."""
    return config.message_timestamp_type is TimestampType.LOG_APPEND_TIME


def _limits(config: TopicConfig, load: ExpectedWrite, now_ms: int) -> Iterator[Finding]:
    if _is_stamped(config):
        return
    before_ms, after_ms = now_ms - config.message_timestamp_before_max_ms, INT64_MAX
    if config.message_timestamp_after_max_ms < INT64_MAX - now_ms:
        after_ms = now_ms + config.message_timestamp_after_max_ms
    if before_ms > 0:
        count = load.between(None, before_ms)
        name, limit_ms = "message.timestamp.before.max.ms", config.message_timestamp_before_max_ms
        yield from _outside(name, limit_ms, f"before {format_ms(before_ms)}", count)
    if after_ms < INT64_MAX:
        count = load.between(after_ms + 1, None)
        name, limit_ms = "message.timestamp.after.max.ms", config.message_timestamp_after_max_ms
        yield from _outside(name, limit_ms, f"after {format_ms(after_ms)}", count)


def _outside(name: str, limit_ms: int, side: str, count: Count | None) -> Iterator[Finding]:
    setting = f"{name}={limit_ms}"
    if count is None:
        text = f"records with create times {side} would be refused; their number is unknown"
        yield Finding(effect=Effect.NOTE, setting=setting, text=text)
    elif count.records:
        text = f"{count_text(count)} with create times {side} would be refused"
        remedy = f"{name}={INT64_MAX}"
        yield Finding(
            effect=Effect.REFUSED, setting=setting, text=text, records=count, remedy=remedy
        )


def _batch_size(config: TopicConfig, load: ExpectedWrite) -> Iterator[Finding]:
    if load.batch_bytes_max is None or load.batch_bytes_max <= config.max_message_bytes:
        return
    yield Finding(
        effect=Effect.NOTE,
        setting=f"max.message.bytes={config.max_message_bytes}",
        text=f"records may have up to {load.batch_bytes_max:,} bytes; a record that does not fit"
        " ends the job",
    )


def _keys(config: TopicConfig, load: ExpectedWrite) -> Iterator[Finding]:
    if not config.is_compacted:
        return
    setting = f"cleanup.policy={config.text('cleanup.policy')}"
    if load.null_keys is None:
        text = "records without a key would be refused; their number is unknown"
        yield Finding(effect=Effect.NOTE, setting=setting, text=text)
    elif load.null_keys.records:
        text = f"{count_text(load.null_keys)} without a key would be refused"
        yield Finding(effect=Effect.REFUSED, setting=setting, text=text, records=load.null_keys)
    yield Finding(
        effect=Effect.NOTE,
        setting=setting,
        text="compaction will delete all records but the last one of each key",
    )


_CLOCK_WAY_OUT: Final = (
    "; tidelog.retention.clock=append measures the age from the append time instead"
)


def _age(config: TopicConfig, load: ExpectedWrite, now_ms: int) -> Iterator[Finding]:
    """Yield findings on records that are too old for retention by time, or in the future.

    Old records are deleted as soon as their segment is finished; records in the future delay the
    deletion of all later records.
    """
    keeps = not config.is_deleted_by_age_or_size or config.retention_ms < 0
    by_append = config.tidelog_retention_clock is RetentionClock.APPEND or _is_stamped(config)
    if keeps or by_append:
        return
    setting = f"retention.ms={config.retention_ms}"
    cut_ms = now_ms - config.retention_ms
    count = load.between(None, cut_ms)
    cut = format_ms(cut_ms)
    way_out = f"; set retention.ms=-1, or a value that keeps them{_CLOCK_WAY_OUT}"
    if count is None:
        text = f"records created before {cut} would be deleted at once; their number is unknown"
        yield Finding(effect=Effect.NOTE, setting=setting, text=text)
    elif count.records:
        text = f"{count_text(count)} created before {cut} would be deleted at once{way_out}"
        yield Finding(
            effect=Effect.DELETED,
            setting=setting,
            text=text,
            records=count,
            remedy="retention.ms=-1",
        )
    if config.tidelog_retention_clock is RetentionClock.RECORD:
        yield from _ahead(setting, load.between(now_ms + 1, None))


def _ahead(setting: str, count: Count | None) -> Iterator[Finding]:
    if count is not None and count.records:
        has = verb(
            count.records,
            "has a create time in the future: retention by time keeps all later records of its"
            " partition at least until that time",
            "have create times in the future: retention by time keeps all later records of their"
            " partitions at least until those times",
        )
        text = f"{count_text(count)} {has}"
        yield Finding(effect=Effect.NOTE, setting=setting, text=text, records=count)


def _size(target: Target, load: ExpectedWrite) -> Iterator[Finding]:
    config = target.config
    if not config.is_deleted_by_age_or_size or config.retention_bytes < 0:
        return
    if load.size_bytes is None:
        return
    room = config.retention_bytes * target.partitions
    if load.size_bytes > room:
        yield Finding(
            effect=Effect.DELETED,
            setting=f"retention.bytes={config.retention_bytes}",
            text=f"about {load.size_bytes:,} bytes would be written to"
            f" {plural(target.partitions, 'partition')} that together keep {room:,} bytes: the"
            " oldest records would be deleted at once",
            remedy="retention.bytes=-1",
        )


# Maximum number of topics that the line of a finding names.
_TOPICS_NAMED: Final = 3


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each different finding: `loss` or `note`, its topics and its text.

    Findings with the same text on several topics have one line together.
    """
    topics: dict[tuple[str, str], dict[str, None]] = {}
    for finding in findings:
        kind = "loss" if finding.is_loss else "note"
        topics.setdefault((kind, str(finding)), {})[finding.topic] = None
    return [f"{kind}: {_names(list(of))}{text}" for (kind, text), of in topics.items()]


def _names(topics: Sequence[str]) -> str:
    """Return the names of topics, followed by a colon; empty for findings without a topic."""
    named = ", ".join(topics[:_TOPICS_NAMED])
    more = len(topics) - _TOPICS_NAMED
    others = f" and {plural(more, 'other topic')}" if more > 0 else ""
    return f"{named}{others}: " if named else ""
