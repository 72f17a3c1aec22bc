"""What clients with a quota have used, and how long they have to be silent.

Source: KIP-13, KIP-219; Kafka 4.3's KafkaApis.handleProduceRequest and handleFetchRequest.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.server.quotas.limits import Limit, Limits
from tidelog.server.quotas.rates import FORGOTTEN_MS, WINDOW_MS, WINDOWS, Rate
from tidelog.server.short_names import short_key
from tidelog.types import INT32_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.env import Clock
    from tidelog.storage.cluster_file import Quotas

PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
# Per cent of one thread's time; ours has one.
REQUESTS: Final = "request_percentage"
# In the order in which Kafka tells those of an entity.
KINDS: Final = (FETCHED, REQUESTS, PRODUCED)
# Clients name themselves as they like: of those whose use is remembered the one that was quiet for
# longest is forgotten where there are more.
RATES_MAX: Final = 100_000

_Who: TypeAlias = tuple[str | None, str | None]


def _who(limit: Limit) -> _Who:
    """Whose use it is; of names that may be long, what takes little memory."""
    user, client_id = limit.user, limit.client_id
    return (
        None if user is None else short_key(user),
        None if client_id is None else short_key(client_id),
    )


class _Uses:
    """Who has used how much, of one kind. In the order of their last use."""

    def __init__(self) -> None:
        self._rates: dict[_Who, Rate] = {}

    def charge(self, limit: Limit, used: float, now_ms: int) -> int:
        """Count a use; how long to be silent for it, in ms."""
        who = _who(limit)
        rate = self._rates.pop(who, None) or Rate()
        self._rates[who] = rate
        self._forget(now_ms)
        rate.record(used, now_ms)
        return min(rate.throttle_ms(limit.per_second, now_ms), INT32_MAX)

    def take_back(self, limit: Limit, used: float, now_ms: int) -> None:
        """Count what was charged at this very time no more."""
        self._rates[_who(limit)].record(-used, now_ms)

    def _forget(self, now_ms: int) -> None:
        """Let two go at most, so that this never takes long, and there are fewer in the end."""
        for _ in range(2):
            who, rate = next(iter(self._rates.items()))
            is_newest = len(self._rates) == 1
            is_old = not is_newest and now_ms - rate.last_ms >= FORGOTTEN_MS
            if not is_old and len(self._rates) <= RATES_MAX:
                return
            del self._rates[who]

    def __len__(self) -> int:
        return len(self._rates)


class Throttles:
    """Rates of those who have a quota. Belongs to the loop's thread."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._limits: Mapping[str, Limits] = {}
        self._uses = {kind: _Uses() for kind in KINDS}

    def use(self, quotas: "Quotas") -> bool:
        """Heed these from now on; whether there are any that are looked at here."""
        self._limits = {kind: Limits(quotas, kind) for kind in KINDS}
        return any(self._limits.values())

    def find(self, kind: str, principal: str, client_id: str | None) -> Limit | None:
        """What holds for a client, None where nothing does.

        Args:
            kind: One of `KINDS`.
            principal: Who it is, such as `User:alice`.
            client_id: How it calls itself.
        """
        return self._limits[kind].find(principal.partition(":")[2], client_id or "")

    def charge(self, kind: str, limit: Limit, used: float) -> int:
        """Count a use; how long to be silent for it, in ms."""
        return self._uses[kind].charge(limit, used, self._clock.monotonic_ms())

    def charge_or_not(self, kind: str, limit: Limit, used: float) -> int:
        """Likewise, but where that is not 0 the use is not made, and does not count."""
        now_ms = self._clock.monotonic_ms()
        throttle_ms = self._uses[kind].charge(limit, used, now_ms)
        if throttle_ms:
            self._uses[kind].take_back(limit, used, now_ms)
        return throttle_ms

    def remembered(self, kind: str) -> int:
        """Of how many clients uses are remembered."""
        return len(self._uses[kind])


def most_at_once(limit: Limit) -> int:
    """What a client may use at once without being throttled for sure."""
    return min(int(limit.per_second * (WINDOWS - 1) * WINDOW_MS / 1000), INT32_MAX)
