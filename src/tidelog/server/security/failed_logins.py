"""How long the answer to a failed log-in is held back: longer with each failure of an address.

Only failures wait. A log-in with the right password is answered at once, whoever else fails from
the same address: a stranger can slow down nobody else. Failures of an address are forgotten one by
one, each after half a minute.
"""

from ipaddress import IPv6Address, ip_address
from typing import Final

from tidelog.env import Clock

# Less than a connection has to log in.
DELAY_MAX_MS: Final = 5000
# A failure counts for so long; of several one after the other.
FORGOTTEN_MS: Final = 30_000
# Of more addresses the one that failed longest ago is forgotten.
ADDRESSES_MAX: Final = 10_000
_STEPS_MAX: Final = 16
# Whoever has one address of IPv6 has all of its /64.
_PREFIX_BITS: Final = 64


class FailedLogins:
    """Failures by address. Belongs to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        """None yet."""
        self._clock = clock
        # Steps and the time up to which they were counted down, in the order of the last failure.
        self._failures: dict[str, tuple[int, int]] = {}

    def delay_ms(self, host: str, base_ms: int) -> int:
        """Count a failure; how long its answer is held back.

        Args:
            host: The client's address.
            base_ms: For the first failure (`connection.failed.authentication.delay.ms`); it doubles
                with each, up to `DELAY_MAX_MS`, and is never less than this.
        """
        now_ms = self._clock.monotonic_ms()
        key = _network(host)
        steps, since_ms = self._failures.pop(key, (0, now_ms))
        forgotten = (now_ms - since_ms) // FORGOTTEN_MS
        steps = max(steps - forgotten, 0)
        since_ms = now_ms if steps == 0 else since_ms + forgotten * FORGOTTEN_MS
        self._failures[key] = (min(steps + 1, _STEPS_MAX), since_ms)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        return max(min(base_ms << steps, DELAY_MAX_MS), base_ms)


def _network(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a socket of this machine
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> _PREFIX_BITS)
    return host
