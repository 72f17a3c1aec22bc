"""Throttle times, and the bound on remembered clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.env import ManualClock
from tidelog.server.admin.quotas import (
    FETCHED,
    FORGOTTEN_MS,
    PRODUCED,
    RATES_MAX,
    Quota,
    QuotaManager,
    Rate,
    most_at_once,
)
from tidelog.types import INT32_MAX

USES = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 5000)), min_size=1, max_size=60)


def test_a_burst_of_ten_seconds_is_free() -> None:
    rate = Rate()
    rate.record(10_000, 5)
    assert rate.throttle_ms(1000, 5) == 0
    rate.record(1000, 5)
    assert rate.throttle_ms(1000, 5) == 1000


@pytest.mark.parametrize("per_second", [5e-324, 1e-310, 1e-6])
def test_the_throttle_time_of_the_smallest_quota_is_finite(per_second: float) -> None:
    rate = Rate()
    rate.record(1e9, 5)
    assert rate.throttle_ms(per_second, 5) == INT32_MAX


@given(uses=USES)
def test_a_refunded_charge_does_not_count(uses: list[tuple[int, int]]) -> None:
    """A refunded charge leaves no trace, except the window that it may have begun, as in Kafka."""
    kept, changed, now_ms = Rate(), Rate(), 1_000_000
    for pause_ms, used in uses:
        now_ms += pause_ms
        for rate in (kept, changed):
            rate.record(used, now_ms)
        changed.record(777, now_ms)
        changed.record(-777, now_ms)
        assert changed.throttle_ms(100, now_ms) == kept.throttle_ms(100, now_ms)


def test_an_idle_client_starts_again_without_debt() -> None:
    rate = Rate()
    rate.record(100_000, 0)
    assert rate.throttle_ms(1000, 0) > 0
    rate.record(10_000, FORGOTTEN_MS)
    assert rate.throttle_ms(1000, FORGOTTEN_MS) == 0


def test_a_charge_late_in_its_window_counts_for_ten_more_windows() -> None:
    rate = Rate()
    rate.record(1, 0)
    rate.record(50_000, 999)
    for second in range(1, 12):
        rate.record(1, second * 1000)
    assert rate.throttle_ms(1000, 11_000) > 30_000
    rate.record(1, 12_000)
    assert rate.throttle_ms(1000, 12_000) == 0


class TestThrottles:
    def test_kinds_do_not_see_each_other(self) -> None:
        throttles = QuotaManager(ManualClock(0))
        assert throttles.use({(("user", "u"),): {PRODUCED: 10.0, FETCHED: 20.0}})
        limit = throttles.find(PRODUCED, "User:u", "app")
        assert limit == Quota("u", None, 10.0)
        assert throttles.charge(PRODUCED, limit, 200) == 10_000
        limit = throttles.find(FETCHED, "User:u", None)
        assert limit == Quota("u", None, 20.0)
        assert throttles.charge(FETCHED, limit, 200) == 0

    def test_quotas_of_other_kinds_have_no_cost(self) -> None:
        throttles = QuotaManager(ManualClock(0))
        assert not throttles.use({(("user", "u"),): {"controller_mutation_rate": 10.0}})

    def test_a_name_with_a_colon_is_a_name(self) -> None:
        throttles = QuotaManager(ManualClock(0))
        throttles.use({(("user", "a:b"),): {PRODUCED: 1.0}})
        assert throttles.find(PRODUCED, "User:a:b", "") is not None

    def test_a_refused_charge_does_not_count(self) -> None:
        throttles = QuotaManager(ManualClock(0))
        throttles.use({(("user", "u"),): {FETCHED: 10.0}})
        limit = throttles.find(FETCHED, "User:u", "")
        assert limit is not None
        assert most_at_once(limit) == 100
        for _ in range(5):
            assert throttles.charge_or_throttle(FETCHED, limit, 150) == 5000
        assert throttles.charge_or_throttle(FETCHED, limit, 100) == 0

    def test_quiet_clients_are_forgotten(self) -> None:
        clock = ManualClock(0)
        throttles = QuotaManager(clock)
        throttles.use({(("client-id", None),): {PRODUCED: 10.0}})
        for number in range(5000):
            limit = throttles.find(PRODUCED, "User:u", f"c{number}")
            assert limit is not None
            throttles.charge(PRODUCED, limit, 1)
            clock.advance(100)
        assert len(throttles._uses[PRODUCED]._rates) <= FORGOTTEN_MS // 100 + 2

    def test_the_number_of_remembered_clients_is_bounded(self) -> None:
        throttles = QuotaManager(ManualClock(0))
        throttles.use({(("client-id", None),): {PRODUCED: 10.0}})
        for number in range(RATES_MAX + 500):
            limit = throttles.find(PRODUCED, "User:u", f"c{number}")
            assert limit is not None
            throttles.charge(PRODUCED, limit, 1)
        assert len(throttles._uses[PRODUCED]._rates) == RATES_MAX
