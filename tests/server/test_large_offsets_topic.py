"""A large, uncompacted `__consumer_offsets` is loaded fast while other clients are served."""

import contextlib
from pathlib import Path

import pytest
from tests.server.offsets_topic import TOPIC, group_name, last_offset, write_offsets_topic
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import Patience

import tidelog
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchTopic
from tidelog.record.builder import build_batch
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.types import NewRecord

PLACES = 5
NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


def offsets_of_group(asking: RawClient, number: int) -> list[int] | None:
    """Return a group's committed offset of each partition; None while it is being loaded."""
    topic = OffsetFetchTopic(name=TOPIC, partition_indexes=list(range(PLACES)))
    request = OffsetFetchRequest(group_id=group_name(number), topics=[topic])
    told = asking.ask(OFFSET_FETCH, 5, request)
    if told.error_code:
        assert told.error_code in NOT_YET
        return None
    return [each.committed_offset for each in told.topics[0].partitions]


def one_of_each(groups: int, partitions: int) -> dict[int, int]:
    """Return, for each partition of `__consumer_offsets`, the number of one of its groups."""
    return {partition_for(group_name(number), partitions): number for number in range(groups)}


def check_loading(path: Path, *, size_bytes: int, partitions: int, groups: int) -> None:
    write_offsets_topic(
        path, size_bytes=size_bytes, partitions=partitions, groups=groups, places=PLACES
    )
    left = list(one_of_each(groups, partitions).values())
    batch = bytes(build_batch([NewRecord(value=b"v")]))
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(tidelog.broker(str(path), settings=SETTINGS))
        asking = stack.enter_context(RawClient(broker.bootstrap_servers))
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
        patience, first = Patience(), left.pop()
        while offsets_of_group(asking, first) is None:
            patience.check()
        for number in left:
            while (found := offsets_of_group(asking, number)) is None:
                # While a group is being loaded, loaded groups and all other requests are served.
                assert offsets_of_group(asking, first) == [last_offset(first)] * PLACES
                assert client.produce("t", batch).error_code == 0
                patience.check()
            assert found == [last_offset(number)] * PLACES
        for number in range(0, groups, 1 + groups // 97):
            assert offsets_of_group(asking, number) == [last_offset(number)] * PLACES


def test_much_is_read_while_others_are_served(quick_path: Path) -> None:
    check_loading(quick_path / "data", size_bytes=8 << 20, partitions=4, groups=200)


@pytest.mark.slow  # 1 GB
def test_a_gigabyte_is_read_while_others_are_served(tmp_path: Path) -> None:
    check_loading(tmp_path / "data", size_bytes=1 << 30, partitions=50, groups=2000)


@pytest.mark.slow  # 1 GB
def test_a_gigabyte_in_one_partition_is_read(tmp_path: Path) -> None:
    check_loading(tmp_path / "data", size_bytes=1 << 30, partitions=1, groups=2000)
