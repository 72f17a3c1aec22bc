"""Any bytes on the control channel are read as a frame and a message, or give a typed error."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import errors
from tidelog.control import channel
from tidelog.control.channel import FRAME_BYTES_MAX, ControlFailure, FrameReader, encode_frame
from tidelog.errors import CorruptMessage, InvalidRequest, TidelogError, UnsupportedVersion


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_messages_are_complete_with_any_division_into_pieces(step: int) -> None:
    sent: list[dict[str, object]] = [{"a": 1}, {}, {"b": ["ä", None]}]
    data = b"".join(map(encode_frame, sent))
    reader = FrameReader()
    found: list[dict[str, object]] = []
    for at in range(0, len(data), step):
        found += reader.feed(data[at : at + step])
    assert found == sent


def test_a_length_is_refused_before_its_bytes_are_received() -> None:
    with pytest.raises(CorruptMessage, match="exceeds"):
        list(FrameReader().feed(struct.pack(">I", FRAME_BYTES_MAX + 1)))


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{", b"\xff", b"[" * 100_000])
def test_a_frame_without_an_object_is_an_error(body: bytes) -> None:
    with pytest.raises(CorruptMessage):
        list(FrameReader().feed(frame(body)))


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(InvalidRequest, match="fewer segments"):
        encode_frame({"x": "y" * FRAME_BYTES_MAX})


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_typed_error(data: bytes) -> None:
    try:
        list(FrameReader().feed(data))
        list(FrameReader().feed(frame(data)))
    except CorruptMessage:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["version", "verb", "arguments", "result", "error"]), JSON))
def test_any_objects_are_a_message_or_a_typed_error(message: dict[str, object]) -> None:
    for read in (channel.read_request, channel.read_response):
        try:
            read(message)
        except TidelogError:
            continue


ERRORS: list[TidelogError] = [
    errors.UnknownTopic("no topic tide"),
    errors.StorageFailure("/data/x", "sync", "I/O error"),
    errors.ClockJump(5, 10, "jumped"),
    errors.ConfigError("a.b", None, "a number"),
    errors.CorruptBatch("bad CRC", at=3, path="/data/x", position=7),
    errors.InvalidTimestamp("too old"),
    errors.MessageTooLarge("tides-0: too large"),
    errors.DirectoryLocked("locked"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_keep_their_type_and_fields_over_the_channel(error: TidelogError) -> None:
    told = json.loads(json.dumps(channel.refusal(error)))
    with pytest.raises(TidelogError) as caught:
        channel.read_response(told)
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    for name in ("path", "operation", "last_ms", "position", "allowed"):
        assert getattr(caught.value, name, None) == getattr(error, name, None)


def test_an_unknown_error_of_the_holder_is_a_control_failure() -> None:
    for kind in ("Exception", "NeverHeardOf", "OffsetOutOfRange"):
        told = {"version": 1, "error": {"type": kind, "text": "odd", "fields": {}}}
        with pytest.raises(ControlFailure, match=f"{kind}: odd"):
            channel.read_response(told)


def test_other_versions() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2"):
        channel.read_request({"version": 2, "verb": "status", "arguments": {}})
