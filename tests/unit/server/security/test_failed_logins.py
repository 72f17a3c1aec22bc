"""Delays of the responses to failed logins."""

from tidelog.env import ManualClock
from tidelog.server.security.authentication import (
    ADDRESSES_MAX,
    DELAY_MAX_MS,
    FORGOTTEN_MS,
    FailedLogins,
)

HERE = "192.0.2.1"


def test_the_delay_doubles_with_each_failure_of_an_address_up_to_a_bound() -> None:
    failed = FailedLogins(ManualClock(0))
    assert [failed.delay_ms(HERE, 100) for _ in range(8)] == [
        *(100 << step for step in range(6)),
        DELAY_MAX_MS,
        DELAY_MAX_MS,
    ]
    assert failed.delay_ms("192.0.2.2", 100) == 100


def test_failures_are_forgotten_one_after_the_other() -> None:
    clock = ManualClock(0)
    failed = FailedLogins(clock)
    for _ in range(4):
        failed.delay_ms(HERE, 100)
    clock.advance(2 * FORGOTTEN_MS)
    assert failed.delay_ms(HERE, 100) == 400
    clock.advance(100 * FORGOTTEN_MS)
    assert failed.delay_ms(HERE, 100) == 100


def test_a_longer_delay_of_the_settings_stays() -> None:
    failed = FailedLogins(ManualClock(0))
    assert {failed.delay_ms(HERE, 9000) for _ in range(3)} == {9000}
    assert {failed.delay_ms(HERE, 0) for _ in range(3)} == {0}


def test_addresses_of_one_network_of_ipv6_count_together() -> None:
    failed = FailedLogins(ManualClock(0))
    assert failed.delay_ms("2001:db8::1", 100) == 100
    assert failed.delay_ms("2001:db8::ffff", 100) == 200
    assert failed.delay_ms("2001:db8:0:1::1", 100) == 100


def test_addresses_are_bounded() -> None:
    failed = FailedLogins(ManualClock(0))
    failed.delay_ms(HERE, 100)
    for number in range(ADDRESSES_MAX):
        failed.delay_ms(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 100)
    assert failed.delay_ms(HERE, 100) == 100
