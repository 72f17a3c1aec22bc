"""DescribeClientQuotas and AlterClientQuotas: what users and clients may use.

Source: Kafka's protocol guide, APIs 48 and 49; KIP-546.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BOOLEAN,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    STRING,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class QuotaFilterComponent:
    """Which names of an entity's kind: 0 this one, 1 the default, 2 any."""

    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasRequest:
    """Whose quotas? With `strict` no entity that has other parts too."""

    components: list[QuotaFilterComponent] = wire(array(struct(QuotaFilterComponent)))
    strict: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True)
class QuotaEntity:
    """One part of an entity: `user`, `client-id` or `ip`, and its name; null for the default."""

    entity_type: str = wire(STRING)
    entity_name: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class QuotaValue:
    """One quota."""

    key: str = wire(STRING)
    value: float = wire(FLOAT64)


@dataclass(slots=True, kw_only=True)
class DescribedQuotas:
    """An entity's quotas."""

    entity: list[QuotaEntity] = wire(array(struct(QuotaEntity)))
    values: list[QuotaValue] = wire(array(struct(QuotaValue)))


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasResponse:
    """Entities with quotas; null with an error."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    entries: list[DescribedQuotas] | None = wire(nullable_array(struct(DescribedQuotas)))


@dataclass(slots=True, kw_only=True)
class QuotaOperation:
    """One quota to set, or to forget."""

    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True)
class QuotaAlteration:
    """What is to change of an entity's quotas."""

    entity: list[QuotaEntity] = wire(array(struct(QuotaEntity)))
    ops: list[QuotaOperation] = wire(array(struct(QuotaOperation)))


@dataclass(slots=True, kw_only=True)
class AlterClientQuotasRequest:
    """Change quotas, or see whether they could be changed."""

    entries: list[QuotaAlteration] = wire(array(struct(QuotaAlteration)))
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True)
class AlteredQuotas:
    """Whether an entity's quotas were changed."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    entity: list[QuotaEntity] = wire(array(struct(QuotaEntity)))


@dataclass(slots=True, kw_only=True)
class AlterClientQuotasResponse:
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    entries: list[AlteredQuotas] = wire(array(struct(AlteredQuotas)))
