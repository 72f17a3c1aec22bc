"""Caches whose keys are names from clients don't keep long names."""

import tracemalloc
from collections.abc import Callable

import pytest

from tidelog.env import ManualClock
from tidelog.server.admin.quotas import PRODUCED, QuotaManager
from tidelog.server.coordinator.java_hash import java_hash, partition_for
from tidelog.server.groups.committed_offsets import CommittedOffset
from tidelog.server.groups.modern_group import ConsumerGroup
from tidelog.server.groups.modern_records import EpochChange, TargetChange
from tidelog.server.groups.records import offset_record
from tidelog.server.runtime.name_cache import NAME_CHARACTERS, is_short, short_key
from tidelog.server.transactions.state_topic import encode_key

USES: dict[str, Callable[[str], object]] = {
    "java_hash": java_hash,
    "partition_for": lambda name: partition_for(name, 50),
    "offset of a group": lambda name: offset_record(name, "t", 0, CommittedOffset(1)),
    "offset of a topic": lambda name: offset_record("g", name, 0, CommittedOffset(1)),
    "transaction": encode_key,
    "group": lambda name: EpochChange(1, 0).record(ConsumerGroup(name)),
    "member": lambda name: TargetChange(name, {}).record(ConsumerGroup("g")),
}
COUNT, SIZE = 60, 20_000


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_long_names_are_not_remembered(use: Callable[[str], object]) -> None:
    use("n" * (SIZE + 2))  # memory for one long name is allocated here
    tracemalloc.start()
    try:
        for number in range(COUNT):
            use(f"{number}" + "n" * SIZE)
        assert tracemalloc.get_traced_memory()[0] < COUNT * SIZE / 3
    finally:
        tracemalloc.stop()
    for name in ("\U0001f600", "n" * NAME_CHARACTERS + "n"):
        assert use(name) == use(name)


def test_names_are_short_together() -> None:
    half = "n" * (NAME_CHARACTERS // 2)
    assert is_short(half, half)
    assert not is_short(half, half, "n")


@pytest.mark.parametrize("length", [*range(3), 63, 64, 65, 127, 128, 129, 1000])
def test_the_hash_of_a_long_name_is_java_s(length: int) -> None:
    name = "ab\U0001f600"[: length % 4] + "x\u00e9" * (length // 2)
    expected = 0
    units = name.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        expected = (expected * 31 + (high << 8 | low)) & 0xFFFFFFFF
    assert java_hash(name) == (expected ^ 0x80000000) - 0x80000000


def test_the_use_of_long_client_ids_is_counted_by_digests() -> None:
    throttles = QuotaManager(ManualClock(0))
    throttles.use({(("client-id", None),): {PRODUCED: 10.0}})
    tracemalloc.start()
    try:
        for number in range(COUNT):
            limit = throttles.find(PRODUCED, "User:u", "c" * SIZE + f"{number}")
            assert limit is not None
            throttles.charge(PRODUCED, limit, 1)
        assert tracemalloc.get_traced_memory()[0] < COUNT * SIZE / 10
    finally:
        tracemalloc.stop()
    assert len(throttles._uses[PRODUCED]._rates) == COUNT
    assert short_key("app") == "app"
