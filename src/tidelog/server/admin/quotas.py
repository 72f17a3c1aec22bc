"""Client quotas: the quota of a client, its usage, throttle times, and the rules for changes.

- Choice: a client gets the first of these quotas that exists: (1) the quota of its user and client
  id, (2) the quota of its user, (3) the quota of the default user and its client id, (4) the quota
  of the default user, (5) the quota of its client id. If (1), (3) or (5) does not exist for the
  client's own id, the quota of the default client id takes its place. The quota's entity is a user,
  a client id or a pair of both. All connections of one user, client id or pair share one usage
  count, even if their quota is a default quota.
- Usage is measured per second, over the last `WINDOWS` windows. A window starts with the first use
  after the end of the previous window. A new client has fewer windows; the missing windows count as
  empty, so the client may start with a burst.
- Throttle time: the time until the usage is within the quota again, if nothing more is used.

This module does no input or output: `metadata_log` stores the quotas, and `net/connection.py` mutes
the connections.

Source: KIP-13, KIP-55, KIP-219, KIP-257 (order), KIP-546; Kafka 4.3's ClientQuotaManager, Rate and
SampledStat with the defaults of `quota.window.num` and `quota.window.size.seconds`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.configs import QuotaAlteration, QuotaFilterComponent, QuotaOperation
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.name_cache import CACHE_ENTRIES_MAX, is_short, short_key
from tidelog.storage.directory.broker_files import Entity, Quotas
from tidelog.types import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from tidelog.env import Clock


USER = "user"
CLIENT_ID = "client-id"
IP = "ip"


class Quota(NamedTuple):
    """Quota of a client.

    Attributes:
        user: User whose connections share the quota; None for connections of all users.
        client_id: Client id whose connections share the quota; None for all client ids.
        per_second: Allowed usage per second.
    """

    user: str | None
    client_id: str | None
    per_second: float


class Limits:
    """All quotas of one kind, such as `producer_byte_rate`."""

    def __init__(self, quotas: Quotas, key: str) -> None:
        self._by_entity = {
            entity: values[key] for entity, values in quotas.items() if key in values
        }

    def __bool__(self) -> bool:
        return bool(self._by_entity)

    def find(self, user: str, client_id: str) -> Quota | None:
        """Return the quota that applies to a user and a client id; None if no quota applies."""
        for entity, shared_user, shared_client in _candidates(user, client_id):
            per_second = self._by_entity.get(entity)
            if per_second is not None:
                return Quota(shared_user, shared_client, per_second)
        return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[Entity, str | None, str | None]]:
    """Iterate over the entities whose quotas may apply to a client, by descending precedence.

    Each entity is yielded with the user and the client id whose connections share the entity's
    quota. None stands for all users or all client ids. A client without an id is not subject to
    quotas of client ids, not even to their default.
    """
    for name in (user, None):
        if client_id:
            yield ((CLIENT_ID, client_id), (USER, name)), user, client_id
            yield ((CLIENT_ID, None), (USER, name)), user, client_id
        yield ((USER, name),), user, None
    if client_id:
        yield ((CLIENT_ID, client_id),), None, client_id
        yield ((CLIENT_ID, None),), None, client_id


WINDOWS: Final = 11
WINDOW_MS: Final = 1000

# If a client uses nothing for this time, its measured usage is 0 again.
FORGOTTEN_MS: Final = WINDOWS * WINDOW_MS


class Window:
    """Usage in one window, which starts at `start_ms`."""

    __slots__ = ("last_ms", "start_ms", "used")

    def __init__(self, start_ms: int) -> None:
        self.begin(start_ms)

    def begin(self, start_ms: int) -> None:
        """Reset to an empty window."""
        self.start_ms = start_ms
        self.last_ms = start_ms
        self.used = 0.0


class Rate:
    """Usage by one client, or by all clients that share a quota."""

    __slots__ = ("_at", "_windows")

    def __init__(self) -> None:
        self._windows: list[Window] = []
        self._at = 0

    @property
    def last_ms(self) -> int:
        """Time in ms of the last use; invalid before the first use."""
        return self._windows[self._at].last_ms

    def record(self, used: float, now_ms: int) -> None:
        """Count usage. A negative value undoes usage that was counted with the same `now_ms`."""
        window = self._current(now_ms)
        if now_ms - window.start_ms >= WINDOW_MS:
            window = self._next(now_ms)
        window.used += used
        window.last_ms = now_ms

    def _current(self, now_ms: int) -> Window:
        if not self._windows:
            self._windows.append(Window(now_ms))
        return self._windows[self._at]

    def _next(self, now_ms: int) -> Window:
        """Start a new window.

        `WINDOWS` + 1 windows are kept, because the oldest is partly outside the measured period.
        """
        self._at = (self._at + 1) % (WINDOWS + 1)
        if self._at == len(self._windows):
            self._windows.append(Window(now_ms))
        else:
            self._windows[self._at].begin(now_ms)
        return self._windows[self._at]

    def throttle_ms(self, per_second: float, now_ms: int) -> int:
        """Return the time in ms until the rate is at most `per_second`, if nothing more is used.

        The result is 0 if the rate is at most `per_second` now, and never more than `INT32_MAX`.
        """
        used, start_ms = 0.0, now_ms
        for window in self._windows:
            if now_ms - window.last_ms >= FORGOTTEN_MS:
                window.begin(now_ms)
            used += window.used
            start_ms = min(start_ms, window.start_ms)
        elapsed_ms = now_ms - start_ms
        missing = max(WINDOWS - 1 - elapsed_ms // WINDOW_MS, 0)
        elapsed_ms = max(elapsed_ms + missing * WINDOW_MS, 1)
        rate = used / (elapsed_ms / 1000)
        if rate <= per_second:
            return 0
        # With a very small quota, the time may be infinite as a float.
        return int(min((rate - per_second) / per_second * elapsed_ms + 0.5, INT32_MAX))


PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"

# The quota is a percentage of the time of one thread, the event loop's thread.
REQUESTS: Final = "request_percentage"

# Quotas that are enforced, in the order in which Kafka lists the quotas of an entity.
KINDS: Final = (FETCHED, REQUESTS, PRODUCED)

# Maximum number of clients whose usage is remembered, for each kind of quota. The maximum limits
# memory, because clients choose their ids freely. If it is exceeded, the client that was charged
# least recently is removed.
RATES_MAX: Final = 100_000

_ClientKey: TypeAlias = tuple[str | None, str | None]


def _client_key(limit: Quota) -> _ClientKey:
    """Return the key for counting the usage of a quota. Long names are shortened to save memory."""
    user, client_id = limit.user, limit.client_id
    return (
        None if user is None else short_key(user),
        None if client_id is None else short_key(client_id),
    )


class _Uses:
    """Usage charged to one kind of quota, by key, in the order of the last charge."""

    def __init__(self) -> None:
        self._rates: dict[_ClientKey, Rate] = {}

    def charge(self, limit: Quota, used: float, now_ms: int) -> int:
        """Count usage; return the throttle time in ms, or 0 if the usage is within the quota."""
        key = _client_key(limit)
        rate = self._rates.pop(key, None) or Rate()
        self._rates[key] = rate
        self._forget(now_ms)
        rate.record(used, now_ms)
        return min(rate.throttle_ms(limit.per_second, now_ms), INT32_MAX)

    def take_back(self, limit: Quota, used: float, now_ms: int) -> None:
        """Undo usage that was counted with the same `now_ms`."""
        self._rates[_client_key(limit)].record(-used, now_ms)

    def _forget(self, now_ms: int) -> None:
        """Remove at most two old or surplus entries.

        Because of this limit, each call is fast. The number of entries still falls, because each
        charge adds at most one entry.
        """
        for _ in range(2):
            key, rate = next(iter(self._rates.items()))
            is_newest = len(self._rates) == 1
            is_old = not is_newest and now_ms - rate.last_ms >= FORGOTTEN_MS
            if not is_old and len(self._rates) <= RATES_MAX:
                return
            del self._rates[key]


class QuotaManager:
    """Usage of all clients with quotas. Used only in the event loop's thread."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._limits: Mapping[str, Limits] = {}
        self._by_client: dict[tuple[str, str, str | None], Quota | None] = {}
        self._uses = {kind: _Uses() for kind in KINDS}

    def use(self, quotas: "Quotas") -> bool:
        """Replace the quotas; return whether any of the new quotas is of a kind in `KINDS`."""
        self._limits = {kind: Limits(quotas, kind) for kind in KINDS}
        self._by_client.clear()
        return any(self._limits.values())

    def find(self, kind: str, principal: str, client_id: str | None) -> Quota | None:
        """Return the quota of a client; None if no quota applies.

        Args:
            kind: One of `KINDS`.
            principal: Principal, such as `User:alice`.
            client_id: Client id of the request.
        """
        client = kind, principal, client_id
        try:
            return self._by_client[client]
        except KeyError:
            limit = self._limits[kind].find(principal.partition(":")[2], client_id or "")
        if is_short(principal, client_id or ""):
            if len(self._by_client) >= CACHE_ENTRIES_MAX:
                self._by_client.clear()
            self._by_client[client] = limit
        return limit

    def charge(self, kind: str, limit: Quota, used: float) -> int:
        """Charge usage to a quota; return the throttle time in ms."""
        return self._uses[kind].charge(limit, used, self._clock.monotonic_ms())

    def charge_or_throttle(self, kind: str, limit: Quota, used: float) -> int:
        """Charge usage and return 0, unless the usage would exceed the quota.

        If it would exceed the quota, charge nothing and return the throttle time in ms.
        """
        now_ms = self._clock.monotonic_ms()
        throttle_ms = self._uses[kind].charge(limit, used, now_ms)
        if throttle_ms:
            self._uses[kind].take_back(limit, used, now_ms)
        return throttle_ms


def most_at_once(limit: Quota) -> int:
    """Return how much a client without earlier usage may use at once without being throttled.

    The result is at most `INT32_MAX`.
    """
    return min(int(limit.per_second * (WINDOWS - 1) * WINDOW_MS / 1000), INT32_MAX)


TYPES: Final = frozenset({USER, CLIENT_ID, IP})

# Kafka's quotas that this broker does not enforce. The broker refuses to set these quotas, so that
# no one relies on them.
NOT_ENFORCED: Final = {
    USER: frozenset({"controller_mutation_rate"}),
    IP: frozenset({"connection_creation_rate"}),
}

# Maximum number of entities with quotas, and maximum length of a name in bytes. Kafka limits both
# by memory only.
ENTITIES_MAX: Final = 100_000

NAME_BYTES_MAX: Final = 1024

# Byte rates must be whole numbers. A value may exceed a whole number by at most this amount.
_EPSILON: Final = 1e-6

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2
_Quotas: TypeAlias = dict[Entity, Mapping[str, float]]


def _refuse(text: str, code: int = ErrorCode.INVALID_REQUEST) -> Refusal:
    return Refusal(code, text)


# -- changing ------------------------------------------------------------------------------------


def parts_of(alteration: QuotaAlteration) -> dict[str, str | None]:
    """Return the names in the entity to change, by entity type.

    If a type occurs twice, the name in its last occurrence is used.
    """
    return {part.entity_type: part.entity_name for part in alteration.entity}


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """Validate an entity and return it; raises Refusal."""
    if not parts:
        raise _refuse("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in TYPES:
            raise _refuse(f"Unhandled client quota entity type: {kind}")
        if name is not None and not name:
            raise _refuse(f"Empty {kind} not supported")
        if name is not None and len(name.encode()) > NAME_BYTES_MAX:
            raise _refuse(f"The name of a {kind} has more than {NAME_BYTES_MAX} bytes")
    if IP in parts and len(parts) > 1:
        raise _refuse(
            "Invalid quota entity combination, IP entity should not be combined with User or"
            " ClientId"
        )
    return tuple(sorted(parts.items()))


def change(quotas: _Quotas, parts: Mapping[str, str | None], ops: Iterable[QuotaOperation]) -> None:
    """Apply all operations to one entity's quotas, or none if one is refused; raises Refusal."""
    entity = entity_of(parts)
    values = dict(quotas.get(entity, {}))
    for op in ops:
        if op.remove:
            values.pop(op.key, None)
        else:
            values[op.key] = _checked(parts, op)
    if not values:
        quotas.pop(entity, None)
        return
    if entity not in quotas and len(quotas) >= ENTITIES_MAX:
        raise _refuse(
            f"{ENTITIES_MAX} entities have quotas, which is the maximum", ErrorCode.POLICY_VIOLATION
        )
    quotas[entity] = values


def _checked(parts: Mapping[str, str | None], op: QuotaOperation) -> float:
    key, value = op.key, op.value
    if key in NOT_ENFORCED[IP if IP in parts else USER]:
        raise _refuse(f"Quota {key} is not enforced by this broker")
    if IP in parts or key not in KINDS:
        raise _refuse(f"Invalid configuration key {key}")
    if value <= 0:
        raise _refuse(f"Quota {key} must be greater than 0")
    if math.isnan(value) or (key == REQUESTS and math.isinf(value)):
        raise _refuse(f"Quota {key} must be a number")
    if key == REQUESTS:
        return value
    if value > float(INT64_MAX):
        raise _refuse(f"Proposed value for {key} is too large for a LONG.")
    if value % 1.0 > _EPSILON:
        raise _refuse(f"{key} cannot be a fractional value.")
    return value


# -- describing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Filter for entities.

    Attributes:
        exact: Maps a type to the name that an entity must have; None stands for the default.
        any_name: Types that an entity must have, with any name.
        is_strict: Whether an entity must have no other types. A strict filter without types
            matches no entity.
    """

    exact: Mapping[str, str | None]
    any_name: frozenset[str]
    is_strict: bool

    def find(self, quotas: Quotas) -> Iterator[Entity]:
        """Iterate over the matching entities."""
        kinds = self.exact.keys() | self.any_name
        if self.is_strict and not kinds:
            return
        for entity in quotas:
            parts = dict(entity)
            fits = parts.keys() == kinds if self.is_strict else parts.keys() >= kinds
            if fits and all(parts[kind] == name for kind, name in self.exact.items()):
                yield entity


def filter_of(components: Iterable[QuotaFilterComponent], *, is_strict: bool) -> QuotaFilter:
    """Convert the filter of a request; raises Refusal."""
    exact: dict[str, str | None] = {}
    any_name: set[str] = set()
    for each in components:
        kind = each.entity_type
        _ensure_new(kind, exact.keys() | any_name)
        if _is_exact(each):
            exact[kind] = each.match
        else:
            any_name.add(kind)
    entity_types = exact.keys() | any_name
    if IP in entity_types and len(entity_types) > 1:
        raise _refuse(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return QuotaFilter(exact, frozenset(any_name), is_strict)


def _ensure_new(kind: str, entity_types: set[str]) -> None:
    if not kind:
        raise _refuse("Invalid empty entity type.")
    if kind in entity_types:
        raise _refuse(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in TYPES:
        raise _refuse(f"Unsupported entity type {kind}", ErrorCode.UNSUPPORTED_VERSION)


def _is_exact(each: QuotaFilterComponent) -> bool:
    match each.match_type:
        case 0:
            if each.match is None:
                raise _refuse("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            return True
        case 1 | 2:
            if each.match is not None:
                word = "DEFAULT" if each.match_type == DEFAULT else "SPECIFIED"
                text = f"Request specified MATCH_TYPE_{word}, but also specified a match string."
                raise _refuse(text)
            return each.match_type == DEFAULT
    raise _refuse(f"Unknown match type {each.match_type}")
