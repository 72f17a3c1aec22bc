"""Rates, with a manual clock."""

import pytest

from tidelog.env import ManualClock
from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import Pacer, Rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50000/s", Rate(50_000)),
        ("2.5 records/s", Rate(2.5)),
        ("1 record/s", Rate(1)),
        ("7 B/s", Rate(7, is_bytes=True)),
        ("3 kB/s", Rate(3_000, is_bytes=True)),
        ("10MB/s", Rate(10_000_000, is_bytes=True)),
        ("2 GB/s", Rate(2_000_000_000, is_bytes=True)),
        ("0.5 KiB/s", Rate(512, is_bytes=True)),
        ("1 MiB / s", Rate(1_048_576, is_bytes=True)),
        (" 1.5GiB /s ", Rate(1_610_612_736, is_bytes=True)),
    ],
)
def test_rates(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "5", "0/s", "-1/s", "5 mb/s", "1e9/s", "5/min"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write records as 50000/s"):
        Rate.parse(text)


def run(rate: Rate | None, chunks: list[tuple[int, int]], each_ms: int) -> list[float]:
    """Return the seconds waited before each chunk; the work on each chunk takes `each_ms`."""
    clock = ManualClock(0)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(round(seconds * 1000))

    pacer = Pacer(rate, clock, wait)
    held = []
    for records, size_bytes in chunks:
        held.append(pacer.hold())
        clock.advance(each_ms)
        pacer.note(records, size_bytes)
    assert waits == [seconds for seconds in held if seconds]
    return held


def test_a_pacer_waits_until_all_is_within_the_rate() -> None:
    assert run(Rate(100), [(50, 0)] * 4, 100) == [0.0, 0.4, 0.4, 0.4]
    assert run(Rate(1_000, is_bytes=True), [(1, 2_000)] * 3, 500) == [0.0, 1.5, 1.5]


def test_slow_work_is_made_up_for() -> None:
    assert run(Rate(100), [(100, 0), (100, 0)], 3_000) == [0.0, 0.0]


def test_without_a_rate_no_call_waits() -> None:
    assert run(None, [(10**9, 10**9)] * 2, 0) == [0.0, 0.0]


def test_a_rate_is_reported() -> None:
    assert str(Rate(50_000)) == "50,000 records/s"
    assert str(Rate(1e6, is_bytes=True)) == "1,000,000 bytes/s"
