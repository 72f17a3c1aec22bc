"""A stream that arrives whole or in pieces is divided into frames; memory is bounded and reused."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples

from tidelog.errors import CorruptMessage
from tidelog.protocol.framing import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    LENGTH_BYTES,
    SPARE_BYTES,
    Frames,
    Spares,
)
from tidelog.record.buffers import is_free

LARGE = CHUNK_BYTES_MAX + 1


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def put(frames: Frames, data: bytes, *, foresees: bool = False) -> int:
    """Fill the buffer as a transport does; return how many bytes fit."""
    with frames.room(foresees=foresees) as room:
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
    frames.filled(count)
    return count


def pump(
    frames: Frames,
    data: bytes,
    sizes: list[int],
    *,
    held: list[memoryview],
    foresees: bool = False,
) -> None:
    """Feed a stream in pieces of these sizes, and append each complete frame to `held`."""
    at = number = 0
    while at < len(data):
        buffered = frames.buffered_bytes
        count = put(frames, data[at : at + sizes[number % len(sizes)]], foresees=foresees)
        assert frames.buffered_bytes - buffered in (count, count - LENGTH_BYTES)
        at += count
        number += 1
        while (frame := frames.next()) is not None:
            held.append(frame)
    assert frames.buffered_bytes == 0


CUTS = st.lists(st.sampled_from([700, 5000, 90_000, 1 << 20]), min_size=1, max_size=4)
BODY_SIZES = st.lists(
    st.sampled_from([0, 1, 3, 40, 3000, CHUNK_BYTES_MIN, 70_000, 300_000]), max_size=8
)

SMALL = 2500


@pytest.fixture
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def memory() -> int:
    """Return the traced memory in bytes."""
    return tracemalloc.get_traced_memory()[0]


class TestAnyCuts:
    @examples(30)
    @given(BODY_SIZES, CUTS, st.booleans(), st.booleans())
    def test_frames_are_read_as_they_were_written(
        self, sizes: list[int], cuts: list[int], keeps: bool, foresees: bool
    ) -> None:
        bodies = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]
        frames, held, seen = Frames(), list[memoryview](), list[bytes]()
        for _ in range(2):
            pump(frames, framed(*bodies), cuts, held=held, foresees=foresees)
            seen += [bytes(frame) for frame in held] if not keeps else []
            if not keeps:
                held.clear()
        found = [bytes(frame) for frame in held] if keeps else seen
        assert found == bodies * 2

    @examples(10)
    @given(BODY_SIZES)
    def test_all_fed_before_anything_is_taken(self, sizes: list[int]) -> None:
        bodies = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]
        frames = Frames()
        frames.feed(framed(*bodies))
        found = []
        while (frame := frames.next()) is not None:
            found.append(bytes(frame))
        assert found == bodies
        assert frames.remaining_bytes == 4

    @examples(100)
    @given(
        st.lists(st.sampled_from([0, 9, 70_000, 70_001, 90_000, 200_000]), max_size=6),
        st.lists(st.sampled_from([1, 3, 4, 60_000, 70_004, 1 << 20]), min_size=1, max_size=4),
    )
    def test_any_frames_are_read_after_a_large_one_was_expected(
        self, sizes: list[int], cuts: list[int]
    ) -> None:
        frames, held = Frames(), list[memoryview]()
        pump(frames, framed(bytes(70_000), bytes(70_000)), [1 << 20], held=held)
        held.clear()
        bodies = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]
        data, at = framed(*bodies), 0
        for cut in [*cuts, *[1 << 20] * 20]:
            if at < len(data):
                at += put(frames, data[at : at + cut], foresees=True)
                while (frame := frames.next()) is not None:
                    held.append(frame)
        assert [bytes(frame) for frame in held] == bodies
        assert frames.is_empty

    def test_byte_by_byte(self) -> None:
        held: list[memoryview] = []
        pump(Frames(), framed(b"ab", b"", b"c" * 500), [1], held=held)
        assert [bytes(frame) for frame in held] == [b"ab", b"", b"c" * 500]


class TestWanted:
    def test_of_small_and_large_frames(self) -> None:
        frames = Frames()
        assert frames.remaining_bytes == 4
        put(frames, b"\0\0")
        assert frames.remaining_bytes == 2
        put(frames, b"\0\x05abc")
        assert frames.remaining_bytes == 2
        put(frames, b"de")
        assert frames.remaining_bytes == 0
        frames.next()
        put(frames, LARGE.to_bytes(4, "big") + b"x")
        frames.room()
        assert frames.remaining_bytes == LARGE - 1

    def test_room_ends_where_a_large_frame_does(self) -> None:
        frames = Frames()
        pump(frames, framed(bytes(LARGE)), [4096], held=[])
        put(frames, LARGE.to_bytes(4, "big"))
        assert len(frames.room()) == LARGE


class TestLimits:
    @pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x0b"])
    def test_a_length_that_is_not_allowed(self, length: bytes) -> None:
        frames = Frames(max_frame_bytes=10)
        put(frames, length)
        with pytest.raises(CorruptMessage, match="0 to 10 bytes are allowed"):
            frames.next()
        with pytest.raises(CorruptMessage, match="0 to 10 bytes are allowed"):
            frames.room()

    def test_a_length_without_its_bytes_allocates_no_memory(self) -> None:
        tracemalloc.start()
        frames = Frames()
        put(frames, (100 << 20).to_bytes(4, "big"))
        frames.room().release()
        frames.feed(bytes(500_000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_500_000

    def test_an_idle_connection_is_small(self) -> None:
        tracemalloc.start()
        frames = [Frames() for _ in range(100)]
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert taken < len(frames) * 2048


class TestBuffers:
    def test_one_buffer_serves_small_frames_that_are_not_kept(self) -> None:
        frames, held, places = Frames(), list[memoryview](), set[int]()
        for _ in range(50):
            pump(frames, framed(b"x" * 3000), [1 << 20], held=held)
            places.add(id(held.pop().obj))
        assert len(places) == 1

    def test_a_buffer_grows_with_its_input(self) -> None:
        frames = Frames()
        data = framed(b"x" * 100) * 10_000
        pump(frames, data, [1 << 20], held=[])
        assert len(frames.room()) == CHUNK_BYTES_MAX

    @pytest.mark.unmeasured
    @pytest.mark.usefixtures("_traced")
    def test_an_idle_connection_frees_its_buffer_and_loses_nothing(self) -> None:
        idle = memory()
        frames = Frames()
        assert memory() - idle < SMALL
        frames.feed(framed(b"a" * 3000) + framed(b"b"))
        first = frames.next()
        assert first is not None
        frames.rest()  # a frame is still pending
        assert bytes(frames.next() or b"") == b"b"
        frames.rest()  # the first frame is still referenced
        assert first == b"a" * 3000
        first.release()
        assert memory() - idle >= 3000
        frames.rest()
        assert memory() - idle < SMALL
        frames.feed(framed(b"c")[:3])
        frames.rest()  # a part of a length is buffered
        frames.feed(framed(b"c")[3:])
        assert bytes(frames.next() or b"") == b"c"

    def test_large_buffers_are_reused_unless_they_have_a_view(self) -> None:
        frames, held, places = Frames(), list[memoryview](), list[int]()
        for _ in range(3):
            pump(frames, framed(bytes(1 << 20)), [60_000], held=held)
            places.append(id(held.pop().obj))
        assert places[1] == places[2]
        pump(frames, framed(b"a" * (1 << 20)), [60_000], held=held)
        pump(frames, framed(b"b" * (1 << 20)), [60_000], held=held)
        assert held[0].obj is not held[1].obj
        assert [bytes(held[0][:1]), bytes(held[1][-1:])] == [b"a", b"b"]

    def test_spares_have_a_bound(self) -> None:
        spares = Spares(limit_bytes=300_000)
        buffers = [bytearray(100_000) for _ in range(5)]
        for buffer in [*buffers, bytearray(400_000)]:
            spares.give(buffer)
        taken = [spares.take(90_000) for _ in range(4)]
        assert [any(take is buffer for buffer in buffers) for take in taken] == [
            True,
            True,
            True,
            False,
        ]

    def test_a_buffer_with_a_view_is_not_free(self) -> None:
        buffer = bytearray(10)
        assert is_free(buffer)
        view = memoryview(buffer)[2:4]
        assert not is_free(buffer)
        view.release()
        assert is_free(buffer)
        assert len(buffer) == 10


class TestForeseen:
    """After two large frames, a connection's next buffer has the size of the smaller frame."""

    def frames(self, *sizes: int, limit: int = 1 << 20) -> Frames:
        """Return Frames that have received frames of these sizes."""
        frames = Frames(limit)
        for size in sizes:
            pump(frames, framed(bytes(size)), [1 << 20], held=[])
        return frames

    def test_one_call_is_enough_for_as_large_a_frame(self) -> None:
        frames = self.frames(200_000, 200_000)
        come = framed(b"x" * 200_000)
        assert put(frames, come, foresees=True) == len(come)
        assert bytes(frames.next() or b"") == come[4:]
        assert frames.is_empty

    @pytest.mark.parametrize("sizes", [(300_000, 200_000), (200_000, 300_000)])
    def test_no_more_is_offered_than_the_smaller_one_had(self, sizes: tuple[int, int]) -> None:
        assert len(self.frames(*sizes).room(foresees=True)) == 200_004

    def test_one_large_frame_foresees_no_other(self) -> None:
        assert len(self.frames(200_000).room(foresees=True)) <= CHUNK_BYTES_MAX

    def test_the_next_buffer_is_large_only_if_requested(self) -> None:
        frames = Frames()
        pump(frames, framed(bytes(200_000)) * 3, [1 << 20], held=[])
        assert len(frames.room()) <= CHUNK_BYTES_MAX
        assert len(frames.room(foresees=True)) == 200_004

    def test_none_is_foreseen_that_is_too_large_to_serve_again(self) -> None:
        frames = self.frames(SPARE_BYTES, SPARE_BYTES, limit=2 * SPARE_BYTES)
        assert len(frames.room(foresees=True)) <= CHUNK_BYTES_MAX

    def test_a_room_that_stays_empty_is_offered_again_until_one_rests(self) -> None:
        frames = self.frames(200_000, 200_000)
        first = frames.room(foresees=True)
        assert frames.room(foresees=True).obj is first.obj
        frames.rest()
        frames.feed(framed(b"small"))
        assert bytes(frames.next() or b"") == b"small"

    def test_after_a_small_frame_none_is_foreseen(self) -> None:
        frames = self.frames(200_000, 200_000)
        come = framed(b"small")
        with frames.room(foresees=True) as room:
            room[: len(come)] = come
        assert frames.lone(len(come)) is None
        frames.filled(len(come))
        assert bytes(frames.next() or b"") == b"small"
        assert len(frames.room(foresees=True)) <= CHUNK_BYTES_MAX

    @pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\0\x04\0\0"])
    def test_a_length_that_is_not_allowed(self, length: bytes) -> None:
        frames = self.frames(200_000, 200_000, limit=250_000)
        put(frames, length + bytes(90_000), foresees=True)
        with pytest.raises(CorruptMessage, match="0 to 250000 bytes are allowed"):
            frames.next()

    @pytest.mark.usefixtures("_traced")
    def test_a_large_buffer_for_smaller_frames_is_soon_released(self) -> None:
        idle = memory()
        frames = self.frames(900_000, 900_000)
        come = framed(b"x" * 100_000, *[b"y" * 1000] * 790)
        assert put(frames, come, foresees=True) == len(come)
        assert bytes(frames.next() or b"") == b"x" * 100_000
        for _ in range(790):
            assert bytes(frames.next() or b"") == b"y" * 1000
        assert frames.is_empty
        pump(frames, framed(b"z"), [1 << 20], held=[])
        pump(frames, framed(b"z"), [1 << 20], held=[])
        del come
        assert memory() - idle <= CHUNK_BYTES_MAX + SPARE_BYTES + SMALL


class TestLone:
    """A single complete frame is returned at once; other input is handled by the general code."""

    @given(
        body=st.binary(max_size=40),
        length=st.integers(-5, 45),
        more=st.binary(max_size=3),
        kept=st.booleans(),
    )
    def test_only_a_whole_frame_that_is_allowed(
        self, body: bytes, length: int, more: bytes, kept: bool
    ) -> None:
        frames = Frames(30)
        if kept:
            frames.feed(b"\0")
        come = length.to_bytes(4, "big", signed=True) + body + more
        with frames.room() as room:
            room[: len(come)] = come
        found = frames.lone(len(come))
        is_lone = not kept and length == len(come) - 4 <= 30
        assert found == (come[4:] if is_lone else None)
        assert frames.is_empty is not kept
        assert frames.lone(len(come)) is None

    def test_a_frame_that_is_not_taken_stays_in_the_buffer(self) -> None:
        frames = Frames(1000)
        come = (6).to_bytes(4, "big") + b"\0\2abcd"
        with frames.room() as room:
            room[: len(come)] = come
        assert frames.lone(len(come) - 1) is None
        frames.filled(len(come))
        assert bytes(frames.next() or b"") == come[4:]

    def test_the_bytes_of_a_frame_stay_while_they_have_a_view(self) -> None:
        frames = Frames(1000)
        found = []
        for number in range(200):
            come = (60).to_bytes(4, "big") + bytes((number,)) * 60
            with frames.room() as room:
                room[: len(come)] = come
            frame = frames.lone(len(come))
            if frame is None:
                frames.filled(len(come))
                frame = frames.next()
            assert frame is not None
            found.append(frame)
        assert [bytes(each) for each in found] == [bytes((n,)) * 60 for n in range(200)]
