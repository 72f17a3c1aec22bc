"""Kernels over messages of magic 0 and 1, also damaged ones, give the results of the plain code."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import Guarded, frozen, run_guarded
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.strategies import contents

from tidelog.errors import CorruptData
from tidelog.record.kernels import plain
from tidelog.record.kernels.layout import DONE
from tidelog.record.kernels.messages import (
    REFUSED_FIELDS,
    STAMP_FIELDS,
    assign_messages,
    check_messages,
    crc32_tables,
)
from tidelog.record.legacy import LegacyBatch, build_legacy_message
from tidelog.storage.log import message_sets
from tidelog.storage.log.message_set_kernels import KernelPasses
from tidelog.storage.log.message_sets import BrokenMessage, SetFacts, SetRules, Stamp
from tidelog.types import INT64_MAX, INT64_MIN, Codec, NewRecord, TimestampType

NOW = 1_700_000_000_000
EDGES = [-1, 0, NOW - 10, NOW, NOW + 10, INT64_MAX]
magics = st.sampled_from([0, 1])
limits = st.sampled_from([0, 1, 3])
rules = st.builds(
    SetRules,
    needs_key=st.booleans(),
    checks_times=st.booleans(),
    earliest_ms=st.sampled_from([INT64_MIN, NOW - 10, NOW]),
    latest_ms=st.sampled_from([NOW, NOW + 10, INT64_MAX]),
)
records = st.lists(
    st.builds(NewRecord, key=contents, value=contents, timestamp=st.sampled_from(EDGES)),
    min_size=1,
    max_size=6,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw a wrapper's messages, which may be damaged, and the magic that they should have."""
    magic = draw(magics)
    body = bytearray(
        build_legacy_set(draw(records), magic=magic, base_offset=draw(st.sampled_from([0, 7])))
    )
    for _ in range(draw(st.integers(0, 2))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 20) | st.integers(0, 255))
    body = body[: draw(st.just(len(body)) | st.integers(1, len(body)))]
    return bytes(body), draw(st.just(magic) | magics)


def plain_facts(body: bytes, magic: int, held: SetRules, limit: int) -> SetFacts | None:
    """Return the `SetFacts` of a body by the plain code; None if it refuses a message."""
    wrapper = LegacyBatch(build_legacy_message(None, b"", magic=magic, offset=0))

    def has_key(message: LegacyBatch) -> bool:
        message.ensure_valid()
        if message.magic != magic:
            raise BrokenMessage(message.at)
        return next(message.records(check_crc=False)).key is not None

    try:
        return message_sets.gather(wrapper.inner_messages(body), has_key, held, limit)
    except (CorruptData, BrokenMessage):
        return None


def kernel_facts(body: bytes, magic: int, held: SetRules, limit: int) -> SetFacts | None:
    try:
        return KernelPasses().check(body, magic, held, limit)
    except BrokenMessage:
        return None


@given(bodies(), rules, limits)
def test_facts_and_refusals_equal_the_plain_pass(
    body: tuple[bytes, int], held: SetRules, limit: int
) -> None:
    assert kernel_facts(*body, held, limit) == plain_facts(*body, held, limit)


@given(bodies(), rules, limits)
def test_check_is_equal_compiled_and_interpreted(
    body: tuple[bytes, int], held: SetRules, limit: int
) -> None:
    data, magic = frozen(body[0]), body[1]
    fields = np.array(held, np.int64)

    def run(guarded: Guarded, *, interpreted: bool) -> object:
        check = plain(check_messages) if interpreted else check_messages
        refused = guarded.array((limit, REFUSED_FIELDS), np.int64)
        return check(data, magic, fields, crc32_tables(), refused)

    compiled = run_guarded(lambda guarded: run(guarded, interpreted=False))
    assert compiled == run_guarded(lambda guarded: run(guarded, interpreted=True))


@given(records, magics, st.none() | st.just(NOW + 5), st.sampled_from([0, 8]))
def test_assigned_sets_equal_the_plain_pass(
    given_records: list[NewRecord], magic: int, time: int | None, attributes: int
) -> None:
    start = 1 << 40
    body = build_legacy_set(given_records, magic=magic, base_offset=3)
    expected, found, interpreted = bytearray(body), bytearray(body), np.array(body, np.uint8)
    stamp = Stamp(time, attributes)
    message_sets.assign(expected, magic, start, stamp)
    KernelPasses().assign(found, magic, start, stamp)
    fields = np.array([time is not None, time or 0, attributes], np.int64)
    count = plain(assign_messages)(interpreted, magic, start, fields, crc32_tables())
    assert fields.size == STAMP_FIELDS
    assert found == expected == interpreted.tobytes()
    assert count == len(given_records)


def test_assigned_messages_are_valid_and_have_append_times() -> None:
    body = build_legacy_set(
        [NewRecord(value=b"v" * size, timestamp=NOW) for size in range(20)], magic=1
    )
    KernelPasses().assign(body, 1, 100, Stamp(NOW + 1, 8))
    wrapper = LegacyBatch(build_legacy_message(None, b"", magic=1, offset=0))
    for number, message in enumerate(wrapper.inner_messages(body)):
        message.ensure_valid()
        assert (message.last_offset, message.max_timestamp) == (100 + number, NOW + 1)
        assert message.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_the_error_has_the_position_of_the_broken_message() -> None:
    body = build_legacy_set([NewRecord(value=b"v")] * 3, magic=0, codec=Codec.NONE)
    size = len(body) // 3
    body[-1] ^= 1
    with pytest.raises(BrokenMessage) as caught:
        KernelPasses().check(bytes(body), 0, SetRules(False, False, 0, 0), 10)
    assert caught.value.at == 2 * size


@given(st.binary(max_size=40))
def test_checksums_are_those_of_zlib(value: bytes) -> None:
    message = build_legacy_message(None, value, magic=1, offset=0)
    assert zlib.crc32(message[16:]) == int.from_bytes(message[12:16], "big")
    fields = np.array(SetRules(False, False, 0, 0), np.int64)
    refused = np.empty((0, REFUSED_FIELDS), np.int64)
    found = check_messages(frozen(bytes(message)), 1, fields, crc32_tables(), refused)
    assert found[0] == DONE
