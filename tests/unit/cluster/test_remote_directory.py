"""`tidelog.connect` without a broker: what is refused before one is asked."""

from collections.abc import Callable

import pytest

import tidelog
from tidelog.cluster.remote_directory import RemoteDirectory
from tidelog.errors import Closed, InvalidRequest
from tidelog.types import NewRecord, TopicPartition

# Nobody listens there, and nobody is asked.
NOWHERE = "127.0.0.1:1"
PLACE = TopicPartition("t", 0)


def connect(timeout_s: float = 1.0) -> RemoteDirectory:
    return tidelog.connect(NOWHERE, timeout_s=timeout_s)


CALLS: dict[str, Callable[[RemoteDirectory], object]] = {
    "topics": lambda log: log.topics(),
    "topic": lambda log: log.topic("t"),
    "partitions": lambda log: log.partitions("t"),
    "create_topic": lambda log: log.create_topic("t"),
    "delete_topic": lambda log: log.delete_topic("t"),
    "alter_config": lambda log: log.alter_config("t", {"retention.ms": "1"}),
    "append": lambda log: log.append("t", [NewRecord(value=b"x")]),
    "flush": lambda log: log.flush(),
    "offsets_for_times": lambda log: log.offsets_for_times({PLACE: 1}),
    "offsets_at": lambda log: log.offsets_at("t", 1),
    "beginning_offsets": lambda log: log.beginning_offsets([PLACE]),
    "end_offsets": lambda log: log.end_offsets([PLACE]),
    "records": lambda log: list(log.records("t")),
    "read": lambda log: log.read("t"),
    "count": lambda log: log.count("t"),
    "scan": lambda log: log.scan("t").to_arrow(),
    "table": lambda log: log.table("t").to_table(),
    "groups": lambda log: log.cluster.groups(),
    "first_records": lambda log: log.cluster.first_records({PLACE: 0}),
    "enter": lambda log: log.__enter__(),
}


def test_what_is_no_partition_is_refused() -> None:
    log = connect()
    with pytest.raises(InvalidRequest, match=r"write TopicPartition\(TOPIC, NUMBER\).*not 'f'"):
        log.end_offsets("f")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="not 'f'"):
        log.offsets_for_times({"f": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_connection_answers_nothing(name: str) -> None:
    log = connect()
    log.close()
    log.close()
    with pytest.raises(Closed, match=f"the connection to {NOWHERE} is closed"):
        CALLS[name](log)
    assert log.point("0") == 0
