"""Check whether a target topic would refuse or lose records that a job will write.

This module has the findings, and the description of a target: partitions and settings of a topic in
a directory or at brokers. The topic either exists, or the job will create it. Before a job starts,
`check` compares the topic's settings with the known properties of the records:

- `message.timestamp.type=LogAppendTime` replaces every create time by the append time;
- `message.timestamp.before.max.ms` and `.after.max.ms` refuse batches whose times are too far from
  the current time;
- `max.message.bytes` refuses large batches, and `cleanup.policy=compact` refuses records without a
  key;
- retention by time deletes old records as soon as their segment is finished; retention by size
  deletes the oldest records above the limit.

A finding is either a note, or a loss (`is_loss`): records or their create times would be lost. A
loss stops a job unless the option `force` is true.

Source: KIP-32, KIP-33; docs/jobs.md, docs/retention.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural, verb
from tidelog.config import ConfigNote, RetentionClock, TopicConfig, plain_settings
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, TidelogError, UnknownTopic
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.view import Count
from tidelog.spark.broker_settings import request_timeout_s
from tidelog.spark.parts import Listener
from tidelog.spark.places import Place
from tidelog.storage import files
from tidelog.storage.directory.topic_registry import NewTopic, check_new
from tidelog.timespec import format_ms
from tidelog.types import INT64_MAX, IsolationLevel, TimestampType

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.remote.cluster import Cluster
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.storage.directory.log_dir import LogDir


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
    """

    effect: Effect
    setting: str
    text: str
    records: Count | None = None
    remedy: str = ""

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
    return sorted(findings, key=lambda finding: not finding.is_loss)


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


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return a line of text for each finding; the line begins with the finding's effect."""
    return [f"{finding.effect.value}: {finding}" for finding in findings]


# Value of tidelog's setting that describes the retention of Kafka's brokers: they always measure a
# record's age from its timestamp, even if the timestamp is in the future.
_BROKER_CLOCK = {"tidelog.retention.clock": "record"}


def open_cluster(place: Place) -> "Cluster":
    """Return a client of the brokers of a place.

    Raises:
        MissingDependency, ConfigError: See `tidelog.remote.cluster.connect`.
    """
    from tidelog.remote.client_settings import translate_settings
    from tidelog.remote.cluster import connect

    settings = translate_settings(place.client)
    return connect(place.address, settings, timeout_s=request_timeout_s(place.client))


def open_directory(place: Place, env: Env, *, create: bool = False) -> "LogDir":
    """Open the directory of a place, for reading, or with `create` for writing."""
    from tidelog.objects.object_files import env_for
    from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

    env = env_for(place.address, env, place.store)
    options = LogDirOptions(writable=create, create=create)
    return LogDir.open(place.address, env=env, options=options)


def open_topics(place: Place, env: Env) -> "Directory | RemoteDirectory":
    """Open the topics of a place for changes. Errors: see `Directory.open` and `connect`."""
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import connect

    if not place.is_broker:
        return Directory.open(place.address, writable=True, env=env, store_options=place.store)
    timeout_s = request_timeout_s(place.client)
    return connect(place.address, config=place.client, timeout_s=timeout_s, env=env)


def partition_counts(place: Place, env: Env) -> dict[str, int]:
    """Return the number of partitions of each topic in a directory or cluster.

    Raises:
        ClusterFailure: The brokers can't be reached, or refuse a request.
        InvalidRequest: The directory does not exist.
    """
    if place.is_broker:
        with open_cluster(place) as cluster:
            return cluster.topics()
    with open_directory(place, env) as log_dir:
        return {name: info.partitions for name, info in log_dir.topics().items()}


def describe(place: Place, topic: str, *, env: Env | None = None) -> Target:
    """Return an existing topic as a target.

    Args:
        place: The directory or cluster.
        topic: Name of the topic.
        env: Files and clock of a local directory; the machine's if None.

    Raises:
        UnknownTopic: The topic does not exist; the message suggests a similar name if there is one.
        InvalidRequest: The directory does not exist, or is in an object store, which jobs only
            read.
        ClusterFailure: The brokers can't be reached, or refuse a request.
    """
    if not place.is_broker and "://" in place.address:
        raise InvalidRequest(f"{place}: object stores are read, not written to; name a directory")
    facts = read_topic(place, topic, IsolationLevel.READ_UNCOMMITTED, env or os_env())
    return Target(
        place=str(place),
        topic=topic,
        partitions=facts.partitions,
        config=facts.config,
        end_offset=sum(facts.ends),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """Current properties of a topic.

    Attributes:
        topic_id: Id as Kafka prints it; "" if the topic has no id.
        config: Settings that apply to the topic.
        starts: Log start offset of each partition.
        ends: End offset of each partition at the requested isolation level.
    """

    topic_id: str
    config: TopicConfig
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.ends)


def read_topic(place: Place, topic: str, isolation: IsolationLevel, env: Env) -> TopicFacts:
    """Return the properties of a topic; raises UnknownTopic, ClusterFailure."""
    if place.is_broker:
        with open_cluster(place) as cluster:
            return _of_cluster(cluster, topic, isolation)
    return _of_directory(place, topic, isolation, env)


def _of_cluster(cluster: "Cluster", topic: str, isolation: IsolationLevel) -> TopicFacts:
    from tidelog.remote.topics import await_leaders

    names = sorted(cluster.partitions(topic))
    # Brokers may list a new topic before the leaders of its partitions serve requests.
    await_leaders(cluster, names)
    marks = cluster.watermarks(names, isolation=isolation)
    return TopicFacts(
        topic_id=cluster.topic_id(topic) or "",
        config=config_of_broker(cluster.topic_settings(topic)),
        starts=tuple(marks[name].start for name in names),
        ends=tuple(marks[name].end for name in names),
    )


def _of_directory(place: Place, topic: str, isolation: IsolationLevel, env: Env) -> TopicFacts:
    with open_directory(place, env) as log_dir:
        info = log_dir.topic(topic)
        readers = [log_dir.reader(topic, number) for number in range(info.partitions)]
        return TopicFacts(
            topic_id="" if info.topic_id is None else files.encode_topic_id(info.topic_id),
            config=info.config,
            starts=tuple(reader.log_start_offset for reader in readers),
            ends=tuple(
                max(reader.end_offset(isolation), reader.log_start_offset) for reader in readers
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTarget:
    """Description of a topic that a job creates if the topic does not exist.

    Attributes:
        partitions: Number of partitions.
        config: Settings with which the topic is created, in addition to the broker's defaults.
    """

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


def new_target(create: int | None, config: Mapping[str, str] | None) -> NewTarget | None:
    """Return the description of the topic to create; None if `create` is None.

    Raises:
        InvalidRequest: Settings are given without a number of partitions.
        ConfigError: A value with a unit does not fit its setting.
    """
    if create is None:
        if config:
            raise InvalidRequest(
                "settings apply only to a topic that the job creates: give its number of partitions"
            )
        return None
    return NewTarget(partitions=create, config=plain_settings(config or {}))


def find_or_plan(
    place: Place, topic: str, new: NewTarget | None, *, env: Env | None = None
) -> tuple[Target, bool]:
    """Return an existing topic, or the topic that the job would create, as a target.

    Nothing is changed.

    Args:
        place: The directory or cluster.
        topic: Name of the topic.
        new: How to create the topic if it is missing; None if it must exist.
        env: Files and clock of a local directory; the machine's if None.

    Returns:
        The target, and whether it has to be created.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: The topic can't be created as requested.
        InvalidRequest: The topic exists with another number of partitions, or with other values of
            the requested settings.
        UnknownTopic, ClusterFailure: See `describe`.
    """
    if new is None:
        return describe(place, topic, env=env), False
    texts, _ = check_new(NewTopic(topic, new.partitions, new.config))
    planned = TopicConfig.parse(texts, broker=_defaults(place, env or os_env()))[0]
    try:
        if place.is_broker or "://" in place.address or _exists(place, env or os_env()):
            existing = describe(place, topic, env=env)
            _ensure_alike(existing, new.partitions, texts, planned)
            return existing, False
    except UnknownTopic:
        pass
    target = Target(
        place=str(place),
        topic=topic,
        partitions=new.partitions,
        config=planned,
        created_with=new.config,
    )
    return target, True


def _exists(place: Place, env: Env) -> bool:
    return env.files.exists(place.address)


def _defaults(place: Place, env: Env) -> Mapping[str, str]:
    """Return the topic defaults that a broker has stored in its directory.

    The result is empty for a cluster or an object store, and if there are no stored defaults.
    """
    if place.is_broker or "://" in place.address or not _exists(place, env):
        return {}
    from tidelog.storage.directory.broker_files import read_stored_defaults

    return read_stored_defaults(env.files, place.address, lambda _: None)


def _ensure_alike(
    existing: Target, partitions: int, texts: Mapping[str, str], planned: TopicConfig
) -> None:
    """Raise InvalidRequest if an existing topic's partition count or settings are not as requested.

    Only the settings in `texts` are compared.
    """
    if existing.partitions != partitions:
        raise InvalidRequest(
            f"{existing.topic} exists with {plural(existing.partitions, 'partition')}, not"
            f" {partitions}"
        )
    current, requested = existing.config.texts(), planned.texts()
    for name in texts:
        if current.get(name) != requested.get(name):
            raise InvalidRequest(
                f"{existing.topic} exists with {name}={current.get(name)}, not"
                f" {requested.get(name)}: set it (tidelog config), or leave the setting out"
            )


def make_topic(
    place: Place, topic: str, partitions: int, settings: Mapping[str, str], env: Env
) -> list[ConfigNote]:
    """Create a topic, and a local directory if it is missing; return notes on the settings.

    Raises:
        ConfigError, InvalidTopic, ClusterFailure, DirectoryLocked: The topic can't be created.
    """
    if not place.is_broker:
        with open_directory(place, env, create=True) as log_dir:
            return log_dir.create_topic(topic, partitions=partitions, config=settings)[1]
    from tidelog.remote.topics import create

    with open_cluster(place) as cluster:
        create(cluster, topic, partitions=partitions, config=settings)
    return []


def make_target(place: Place, topic: str, new: NewTarget, env: Env, listener: Listener) -> None:
    """Create a topic as planned, and report notes on its settings. Errors: see `make_topic`."""
    for note in make_topic(place, topic, new.partitions, new.config, env):
        listener.note(str(note))


def drop_empty_topic(place: Place, topic: str, env: Env) -> bool:
    """Delete a topic that never had a record; return whether it was deleted. Ignores errors.

    Used for a topic that was created for a write that failed or was refused.
    """
    with suppress(TidelogError, OSError), open_topics(place, env) as topics:
        if not any(topics.end_offsets(topics.partitions(topic)).values()):
            topics.delete_topic(topic)
            return True
    return False


@contextmanager
def rollback_of_topics(place: Place, topics: Collection[str], env: Env) -> Iterator[None]:
    """If the block raises an exception, delete the new topics that never had a record.

    For each topic, a note on the error states whether the topic was deleted.

    Args:
        place: The directory or cluster.
        topics: Names of topics created so far; the block may add more.
        env: Files and clock of a local directory.
    """
    try:
        yield
    except BaseException as error:
        for topic in topics:
            end = "was deleted again" if drop_empty_topic(place, topic, env) else "still exists"
            error.add_note(f"topic {topic} had been created at {place} for this write and {end}")
        raise


def config_of_broker(settings: Mapping[str, str]) -> TopicConfig:
    """Return the settings of a topic from a broker's response; unknown names are ignored."""
    # The settings are parsed as broker defaults, because broker defaults may have unknown names. A
    # topic's own settings must not have unknown names, but a broker of a later release returns
    # names that this release does not know.
    return TopicConfig.parse({}, broker=_BROKER_CLOCK | dict(settings))[0]
