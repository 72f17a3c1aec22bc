"""The append clock of a foreign broker: known where it stamped records itself (LogAppendTime).

A topic's setting says only how records are stamped from now on, so the records around an answer
must bear the stamp: the one found, and the last one before it. Brokers stamp a partition in order,
so what lies further back was appended earlier still.
"""

from collections.abc import Iterable, Mapping

from tidelog.cluster.view import ClusterView, RemoteRecord, Watermarks
from tidelog.errors import InvalidRequest
from tidelog.types import OffsetAndTimestamp, TimestampType, TopicPartition

SETTING = "message.timestamp.type"


def first_stamped(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    found: Mapping[TopicPartition, OffsetAndTimestamp | None],
    *,
    asked: str = "--clock append",
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The answers of a search by timestamp, where they are about append times.

    Args:
        cluster: Where to look.
        marks: Watermarks of the partitions.
        found: The answers.
        asked: How the clock was chosen, for errors.

    Raises:
        InvalidRequest: A topic, or a record that decides, is not stamped LogAppendTime.
    """
    _refuse_unstamped_topics(cluster, {partition.topic for partition in marks}, asked)
    for partition, mark in marks.items():
        answer = found[partition]
        end = mark.end if answer is None else answer.offset
        before = last_record_below(cluster, partition, mark.start, end)
        after = None if answer is None else cluster.first_records({partition: end})[partition]
        for record in (before, after):
            _refuse_unstamped_record(partition, record, asked)
    return dict(found)


def _refuse_unstamped_topics(cluster: ClusterView, topics: Iterable[str], asked: str) -> None:
    stamped = TimestampType.LOG_APPEND_TIME.config_name
    for topic in sorted(topics):
        setting = cluster.topic_settings(topic).get(SETTING)
        if setting != stamped:
            raise InvalidRequest(
                f"{asked}: {topic} has {SETTING}={setting}, so its brokers don't know when"
                f" records were appended; give --data with a directory that tidelog wrote,"
                f" or use --clock record"
            )


def _refuse_unstamped_record(
    partition: TopicPartition, record: RemoteRecord | None, asked: str
) -> None:
    if record is None or record.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    raise InvalidRequest(
        f"{asked}: {partition} offset {record.offset} bears a create time (the topic became"
        f" {TimestampType.LOG_APPEND_TIME.config_name} later); use --clock record"
    )


def last_record_below(
    cluster: ClusterView, partition: TopicPartition, start: int, end: int
) -> RemoteRecord | None:
    """The last data record with an offset in [start, end), None where there is none."""
    step = 1
    while start < end:
        first = max(end - step, start)
        last = None
        for record in cluster.records(partition, first, end):
            last = record
        if last is not None or first == start:
            return last
        step *= 2
    return None
