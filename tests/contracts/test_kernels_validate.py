"""The kernel that checks a batch's body gives the plain code's results, also on damaged bodies."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import frozen
from tests.worlds.records.kernel_logs import batches, times

from tidelog.errors import CorruptRecord
from tidelog.record.header import HEADER_SIZE
from tidelog.record.kernels import check_body, plain, validate_batch_body
from tidelog.storage.log import record_rules
from tidelog.types import Codec

Check = Callable[[bytes, int, int], tuple[int, int, bool, bool]]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw a body that may be damaged, and a record count that may be wrong."""
    batch = bytearray(draw(batches(codecs=(Codec.NONE,))))
    count = int.from_bytes(batch[HEADER_SIZE - 4 : HEADER_SIZE], "big")
    body = batch[HEADER_SIZE:]
    for _ in range(draw(st.integers(0, 3))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 20) | st.integers(0, 255))
    body = body[: draw(st.just(len(body)) | st.integers(0, len(body)))]
    return bytes(body), count + draw(st.sampled_from((0, 0, 0, 1, -1, 2**31 - 1 - count)))


def outcome(check: Check, body: bytes, count: int, base: int) -> tuple[int, int, bool, bool] | None:
    """Return the check's result for a body; None if the check refuses the body."""
    try:
        return tuple(check(body, count, base))  # type: ignore[return-value] # the plain one's class
    except CorruptRecord:
        return None


@given(body=bodies(), base=times)
def test_facts_and_refusals_equal_the_plain_pass(body: tuple[bytes, int], base: int) -> None:
    assert outcome(check_body, *body, base) == outcome(record_rules.check_body, *body, base)


@given(body=bodies(), base=times)
def test_kernel_is_equal_compiled_and_interpreted(body: tuple[bytes, int], base: int) -> None:
    data, count = frozen(body[0]), body[1]
    assert validate_batch_body(data, count, base) == plain(validate_batch_body)(data, count, base)


def test_an_empty_body_has_no_facts() -> None:
    assert check_body(b"", 0, 5) == tuple(record_rules.check_body(b"", 0, 5))


def test_the_error_names_the_place_of_the_record() -> None:
    good = bytes((12, 0, 0, 0, 1, 1, 0))
    bad = bytes((12, 0, 0, 2, 1, 1, 2))
    with pytest.raises(CorruptRecord) as caught:
        check_body(good + bad, 2, 0)
    assert caught.value.at == len(good)
