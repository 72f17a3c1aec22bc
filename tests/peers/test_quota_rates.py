"""Throttle times equal those of Kafka's own sensors, to the millisecond."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.worlds.kafka.oracle import Oracle

from tidelog.server.admin.quotas import Rate

pytestmark = pytest.mark.kafka

PAUSES = st.sampled_from([0, 1, 10, 500, 999, 1000, 1001, 9_999, 10_000, 11_000, 12_000, 40_000])
AMOUNTS = st.integers(1, 30_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    uses=st.lists(st.tuples(PAUSES | st.integers(0, 15_000), AMOUNTS), min_size=1, max_size=80),
    bound=st.sampled_from([1, 10, 1000, 4321.5, 1e9]),
)
def test_each_wait_is_kafkas(
    kafka_oracle: Oracle, uses: list[tuple[int, int]], bound: float
) -> None:
    rate, now_ms, times, waits = Rate(), 1_000_000, [], []
    for pause_ms, amount in uses:
        now_ms += pause_ms
        times.append((now_ms, amount))
        rate.record(amount, now_ms)
        waits.append(rate.throttle_ms(bound, now_ms))
    assert waits == kafka_oracle.ask("throttle", bound=bound, uses=times)
