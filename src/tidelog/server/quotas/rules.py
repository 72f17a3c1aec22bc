"""What may be asked and changed of quotas. Pure.

Source: KIP-546; answers of Kafka 4.3, whose texts tools print.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.quotas import (
    QuotaAlteration,
    QuotaFilterComponent,
    QuotaOperation,
)
from tidelog.server.errors import Refusal
from tidelog.server.quotas.limits import CLIENT_ID, IP, USER
from tidelog.server.quotas.throttles import KINDS, REQUESTS
from tidelog.storage.cluster_file import Entity, Quotas
from tidelog.types import INT64_MAX

TYPES: Final = frozenset({USER, CLIENT_ID, IP})
# Kafka's, which nobody looks at here: refused, so that nobody relies on them.
NOT_ENFORCED: Final = {
    USER: frozenset({"controller_mutation_rate"}),
    IP: frozenset({"connection_creation_rate"}),
}
# Kafka is bounded by its memory; ours is a number.
ENTITIES_MAX: Final = 100_000
NAME_BYTES_MAX: Final = 1024
# How far from a whole number a value may be that has to be one.
_EPSILON: Final = 1e-6

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2

_Kept: TypeAlias = dict[Entity, Mapping[str, float]]


def _refuse(text: str, code: int = ErrorCode.INVALID_REQUEST) -> Refusal:
    return Refusal(code, text)


# -- changing ------------------------------------------------------------------------------------


def parts_of(asked: QuotaAlteration) -> dict[str, str | None]:
    """The parts of the entity that is to change; of one that is named twice the last counts."""
    return {part.entity_type: part.entity_name for part in asked.entity}


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """A checked entity; raises Refusal."""
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


def change(kept: _Kept, parts: Mapping[str, str | None], ops: Iterable[QuotaOperation]) -> None:
    """Change one entity's quotas, all that is asked or nothing; raises Refusal."""
    entity = entity_of(parts)
    values = dict(kept.get(entity, {}))
    for op in ops:
        if op.remove:
            values.pop(op.key, None)
        else:
            values[op.key] = _checked(parts, op)
    if not values:
        kept.pop(entity, None)
        return
    if entity not in kept and len(kept) >= ENTITIES_MAX:
        raise _refuse(
            f"There are quotas of {ENTITIES_MAX} entities already", ErrorCode.POLICY_VIOLATION
        )
    kept[entity] = values


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


# -- looking -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Which entities are asked for.

    Attributes:
        exact: Names by type, null for the default.
        any_name: Types that an entity must have, whatever the name.
        is_strict: Whether it must have no others.
    """

    exact: Mapping[str, str | None]
    any_name: frozenset[str]
    is_strict: bool

    def find(self, quotas: Quotas) -> Iterator[Entity]:
        """Those that fit."""
        wanted = self.exact.keys() | self.any_name
        if self.is_strict and not wanted:
            return
        for entity in quotas:
            parts = dict(entity)
            fits = parts.keys() == wanted if self.is_strict else parts.keys() >= wanted
            if fits and all(parts[kind] == name for kind, name in self.exact.items()):
                yield entity


def filter_of(components: Iterable[QuotaFilterComponent], *, is_strict: bool) -> QuotaFilter:
    """What a request asks for; raises Refusal."""
    exact: dict[str, str | None] = {}
    any_name: set[str] = set()
    for each in components:
        kind = each.entity_type
        _ensure_new(kind, exact.keys() | any_name)
        if _is_exact(each):
            exact[kind] = each.match
        else:
            any_name.add(kind)
    found = exact.keys() | any_name
    if IP in found and len(found) > 1:
        raise _refuse(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return QuotaFilter(exact, frozenset(any_name), is_strict)


def _ensure_new(kind: str, known: set[str]) -> None:
    if not kind:
        raise _refuse("Invalid empty entity type.")
    if kind in known:
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
