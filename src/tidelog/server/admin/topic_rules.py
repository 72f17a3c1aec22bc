"""Kafka's rules for requests about topics: counts, replicas, assignments, settings.

There is one broker, so each partition has one replica. The error texts are the same as in Kafka's
controller. This module does no input or output.

Source: Kafka 4.3's ReplicationControlManager, Topic and ConfigurationControlManager.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidelog.config import TopicConfig
from tidelog.config.topic import TOPIC_CONFIG_BY_NAME
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError, shortened
from tidelog.lazy_dataclass import dataclass
from tidelog.server.runtime.errors import Refusal

NAME_CHARACTERS_MAX: Final = 249
NEW_PARTITIONS_MAX: Final = 10_000

_NAME_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)


def ensure_name(name: str) -> None:
    """Refuse an invalid topic name; raises Refusal."""
    problem = _name_problem(name)
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def _name_problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in {".", ".."}:
        return f"'{name}' is not allowed"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_CHARACTERS_MAX}"
    if not _NAME_CHARACTERS.issuperset(name):
        allowed = "ASCII alphanumerics, '.', '_' and '-'"
        return f"'{name}' contains one or more characters other than {allowed}"
    return None


def ensure_new(name: str, existing: Iterable[str]) -> None:
    """Raise Refusal if a topic has this name, or a name that differs only in `.` and `_`."""
    if name in existing:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if "." not in name and "_" not in name:
        return
    twin = name.replace(".", "_")
    for other in existing:
        if other.replace(".", "_") == twin:
            raise Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {other}",
            )


@dataclass(frozen=True, slots=True)
class Layout:
    """Requested layout of a new topic.

    Attributes:
        partitions: Number of partitions; -1 for the default, or if assignments are given.
        replication_factor: Replication factor; -1 for the default.
        assignments: Partitions with their brokers, in the order of the request; empty if the
            request does not assign brokers.
    """

    partitions: int
    replication_factor: int
    assignments: Sequence[tuple[int, Sequence[int]]] = ()


def count_of(layout: Layout, *, default: int, node_id: int) -> int:
    """Return the number of partitions of a new topic; raises Refusal."""
    if layout.assignments:
        return _assigned_count(layout, node_id)
    if layout.replication_factor == 0 or layout.replication_factor < -1:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if layout.partitions == 0 or layout.partitions < -1:
        text = "Number of partitions was set to an invalid non-positive value."
        raise Refusal(ErrorCode.INVALID_PARTITIONS, text)
    if layout.replication_factor > 1:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {layout.replication_factor} time(s): The target"
            f" replication factor of {layout.replication_factor} cannot be reached because only 1"
            " broker(s) are registered.",
        )
    return default if layout.partitions == -1 else layout.partitions


def _assigned_count(layout: Layout, node_id: int) -> int:
    prefix = "A manual partition assignment was specified, but"
    if layout.replication_factor != -1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{prefix} replication factor was not set to -1.")
    if layout.partitions != -1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{prefix} numPartitions was not set to -1.")
    numbers: set[int] = set()
    for partition, brokers in layout.assignments:
        if partition in numbers:
            text = f"Found multiple manual partition assignments for partition {partition}"
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        ensure_brokers(brokers, node_id)
        numbers.add(partition)
    if numbers != set(range(len(numbers))):
        text = "partitions should be a consecutive 0-based integer sequence"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return len(numbers)


def ensure_brokers(brokers: Sequence[int], node_id: int) -> None:
    """Raise Refusal unless this broker is the partition's only broker, named once."""
    text = "The manual partition assignment includes"
    if not brokers:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{text} an empty replica list.")
    others = sorted(broker for broker in brokers if broker != node_id)
    if others:
        text = f"{text} broker {others[0]}, but no such broker is registered."
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if len(brokers) > 1:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{text} the broker {node_id} more than once."
        )


def ensure_growth(
    name: str, current: int, count: int, assignments: Sequence[Sequence[int]] | None, node_id: int
) -> None:
    """Ensure that a topic may grow from `current` to `count` partitions; raises Refusal.

    `count` must exceed `current`. If `assignments` are given, there must be one for each new
    partition, and each must consist of this broker alone.
    """
    if count == current:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if count < current:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); {count} would not be an"
            " increase.",
        )
    if assignments is None:
        return
    if len(assignments) != count - current:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {count - current} additional partition(s), but only"
            f" {len(assignments)} assignment(s) were specified.",
        )
    for brokers in assignments:
        ensure_brokers(brokers, node_id)


def topic_settings(
    pairs: Iterable[tuple[str, str | None]], defaults: Mapping[str, str]
) -> tuple[dict[str, str], TopicConfig]:
    """Return a new topic's settings as texts and as values.

    If a name occurs twice, its last text is used.

    Args:
        pairs: Names and texts of settings. Old names of settings are not allowed.
        defaults: The broker's settings, under the broker's names.

    Raises:
        Refusal: A name is unknown, a value is null or invalid, or two values contradict each other.
    """
    texts: dict[str, str] = {}
    for name, text in pairs:
        if text is None:
            message = f"Null value not supported for topic configs: {name}"
            raise Refusal(ErrorCode.INVALID_CONFIG, message)
        texts[name] = text
    return texts, parsed(texts, defaults)


def parsed(texts: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """Parse a topic's settings; raises Refusal."""
    for name in texts:
        if name not in TOPIC_CONFIG_BY_NAME:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    try:
        return TopicConfig.parse(texts, broker=defaults)[0]
    except ConfigError as error:
        raise config_refusal(error) from error


def config_refusal(error: ConfigError) -> Refusal:
    """Build the error for an invalid setting, in Kafka's words."""
    if error.value is None:
        return Refusal(ErrorCode.INVALID_CONFIG, str(error))
    text = f"Invalid value {shortened(error.value)} for configuration {error.key}: {error.allowed}"
    return Refusal(ErrorCode.INVALID_CONFIG, text)
