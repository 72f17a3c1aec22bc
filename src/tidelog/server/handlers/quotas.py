"""DescribeClientQuotas and AlterClientQuotas.

Each entity may be named once in a request; what one is refused for is not the others' business.

Source: Kafka's protocol guide, APIs 48 and 49; KIP-546; Kafka 4.3's ClientQuotaControlManager.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaAlteration,
    QuotaEntity,
    QuotaValue,
)
from tidelog.server.errors import Refusal, refusal_of
from tidelog.server.quotas.rules import QuotaFilter, change, filter_of, parts_of
from tidelog.server.quotas.throttles import KINDS
from tidelog.server.requests import Long, RequestContext, long_if_many
from tidelog.storage.cluster_file import ClusterState, Entity, Quotas

_Parts: TypeAlias = tuple[tuple[str, str | None], ...]
_TWICE: Final = "Ignoring duplicate entity"


async def describe_client_quotas(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Long:
    """Quotas of the entities that fit a filter."""
    quotas = context.node.cluster.state.quotas
    try:
        wanted = filter_of(request.components, is_strict=request.strict)
    except Refusal as why:
        return DescribeClientQuotasResponse(
            error_code=why.error_code, error_message=why.message, entries=None
        )
    found = await context.node.work.run_long(len(quotas), _describe, quotas, wanted)
    response = DescribeClientQuotasResponse(error_code=0, error_message="", entries=found)
    return long_if_many(response, found)


def _describe(quotas: Quotas, wanted: QuotaFilter) -> list[DescribedQuotas]:
    """Quotas of the entities that fit a filter; for any thread."""
    return [_described(entity, quotas[entity]) for entity in wanted.find(quotas)]


def _described(entity: Entity, values: Mapping[str, float]) -> DescribedQuotas:
    return DescribedQuotas(
        entity=_parts(entity),
        values=[QuotaValue(key=key, value=values[key]) for key in KINDS if key in values],
    )


def _parts(entity: _Parts) -> list[QuotaEntity]:
    return [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]


async def alter_client_quotas(
    context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Set and forget quotas; answered when the change is durable, and holds."""
    names = [_name(asked) for asked in request.entries]
    times = Counter(names)
    results = {name: AlteredQuotas(error_code=0, entity=_parts(name)) for name in times}

    def changed(state: ClusterState) -> ClusterState:
        kept = dict(state.quotas)
        for name, asked in zip(names, request.entries, strict=True):
            try:
                _ensure_once(asked, times[name])
                change(kept, parts_of(asked), asked.ops)
            except Refusal as why:
                _say(results[name], why)
        return state if request.validate_only else replace(state, quotas=kept)

    try:
        await context.node.cluster.change(changed)
    except TidelogError as error:
        for result in results.values():
            _say(result, refusal_of(error))
    return AlterClientQuotasResponse(entries=list(results.values()))


def _name(asked: QuotaAlteration) -> _Parts:
    return tuple(sorted(parts_of(asked).items()))


def _ensure_once(asked: QuotaAlteration, times: int) -> None:
    """Refuse what is named twice: an entity, or a key of it."""
    keys = [op.key for op in asked.ops]
    if times > 1 or len(set(keys)) < len(keys):
        inside = ", ".join(f"{kind}={name}" for kind, name in _name(asked))
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"{_TWICE} ClientQuotaEntity(entries={{{inside}}})"
        )


def _say(result: AlteredQuotas, why: Refusal) -> None:
    result.error_code, result.error_message = why.error_code, why.message
