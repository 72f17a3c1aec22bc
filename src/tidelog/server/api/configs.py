"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources and client quotas.

Changes of topics, groups and the broker apply without a restart, as far as Kafka allows them. In
AlterClientQuotas each entity may be named once; a refused entity doesn't affect others.

Source: Kafka's protocol guide, APIs 32, 33, 44, 48, 49 and 74; KIP-133, KIP-226, KIP-339, KIP-546,
KIP-1142; Kafka 4.3's ClientQuotaControlManager, KafkaApis, ControllerApis and ConfigHelper
(rights).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias, TypeVar

from tidelog.config.values import is_tellable
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    DescribedConfig,
    DescribedQuotas,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
    QuotaAlteration,
    QuotaEntity,
    QuotaValue,
)
from tidelog.server.admin.config_changes import ConfigChange, ConfigChanges, ConfigOperation
from tidelog.server.admin.config_display import ConfigEntry
from tidelog.server.admin.quotas import KINDS, QuotaFilter, change, filter_of, parts_of
from tidelog.server.api.config_resources import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    ConfigResource,
    find_resource,
)
from tidelog.server.api.context import Answer, Long, RequestContext, long_if_many
from tidelog.server.api.guards import (
    DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    failed_item,
)
from tidelog.server.api.node import Node
from tidelog.server.runtime.errors import Refusal, errors_in, refusal_of, set_error
from tidelog.server.runtime.loop import Slices
from tidelog.server.security.operations import Operation
from tidelog.storage.directory.broker_files import ClusterState, Entity, Quotas

# Up to this many resources are described without yielding the event loop: a fraction of a
# millisecond each.
AT_ONCE: Final = 8

# Resource types that requests may name; types without settings here are never listed.
RESOURCE_KINDS: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})

# Resource types that AlterConfigs may name: loggers' levels can only be altered incrementally.
REPLACEABLE_KINDS: Final = RESOURCE_KINDS - {BROKER_LOGGER}


# -- describe ------------------------------------------------------------------------------------


def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> Answer:
    """Describe the settings of resources, each once, however often it is named.

    If any resource has an unknown type, the whole request is refused.
    """
    if not RESOURCE_KINDS.issuperset(each.resource_type for each in request.resources):
        why = Refusal(
            ErrorCode.INVALID_REQUEST,
            "The request asks for settings of an unknown resource type.",
        )
        return DescribeConfigsResponse(
            results=[
                failed_item(DescribeConfigsResult, each, why.error_code, why.message)
                for each in request.resources
            ]
        )
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    if len(resources) > AT_ONCE:
        return _describe_many(context.node, list(resources.values()), request)
    results = [_described(context.node, each, request) for each in resources.values()]
    return DescribeConfigsResponse(results=results)


async def _describe_many(
    node: Node, resources: Sequence[DescribeConfigsResource], request: DescribeConfigsRequest
) -> Long:
    """Describe resources in slices, yielding the event loop in between."""
    slices, results = Slices(node.env.clock), []
    for resource in resources:
        results.append(_described(node, resource, request))
        await slices.rest()
    return Long(DescribeConfigsResponse(results=results), results)


def _described(
    node: Node, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    try:
        config_resource = find_resource(node, kind, name)
        if config_resource is None:
            text = f"no settings of resource type {kind} here"
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
        entries, keys = config_resource.describe(), set(resource.configuration_keys or ())
    except TidelogError as error:
        why = refusal_of(error)
        return failed_item(DescribeConfigsResult, resource, why.error_code, why.message or "")
    return DescribeConfigsResult(
        error_code=0,
        error_message="",
        resource_type=kind,
        resource_name=name,
        configs=[_shown(entry, request) for entry in entries if not keys or entry.name in keys],
    )


def _visible(text: str | None) -> str | None:
    """Return a value as the response shows it: null if the protocol's strings can't hold it."""
    return None if text is None or not is_tellable(text) else text


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribedConfig:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribedConfig(
        name=entry.name,
        value=_visible(entry.value),
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=_visible(each.value), source=each.source)
            for each in synonyms
        ],
        config_type=entry.kind,
        documentation=entry.doc if request.include_documentation else None,
    )


async def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | Long:
    """List resources with settings: topics, the broker, groups with settings of their own."""
    kinds = set(request.resource_types) if context.version >= 1 else {CLIENT_METRICS}
    if kinds - RESOURCE_KINDS:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    node = context.node
    resources = [
        ListedConfigResource(resource_name=name, resource_type=kind)
        for kind, names in (
            (BROKER, [str(node.node_id)]),
            (TOPIC, node.topics.names()),
            (GROUP, node.cluster.state.groups),
        )
        if not kinds or kind in kinds
        for name in names
    ]
    response = ListConfigResourcesResponse(error_code=0, config_resources=resources)
    return long_if_many(response, resources)


# -- alter ---------------------------------------------------------------------------------------

_AlterResource: TypeAlias = IncrementalAlterConfigsResource | AlterConfigsResource

_Altered = TypeVar(
    "_Altered", IncrementalAlterConfigsResourceResponse, AlterConfigsResourceResponse
)


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change the named settings and leave the others."""
    kind = IncrementalAlterConfigsResourceResponse
    responses = await _alter(context.node, request.resources, kind, is_trial=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=responses)


async def alter_configs(
    context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Change the named settings and reset all others to their defaults."""
    kind = AlterConfigsResourceResponse
    responses = await _alter(context.node, request.resources, kind, is_trial=request.validate_only)
    return AlterConfigsResponse(responses=responses)


async def _alter(
    node: Node, resources: Sequence[_AlterResource], kind: type[_Altered], *, is_trial: bool
) -> list[_Altered]:
    """Change resources one after the other; each may be named once."""
    names, responses, slices = _count_names(resources), [], Slices(node.env.clock)
    for resource in resources:
        await slices.rest()
        why = Refusal(ErrorCode.NONE, None)
        try:
            config_resource = _find_resource(node, resource, names, RESOURCE_KINDS)
            if config_resource is None:
                raise _unknown_kind(resource)
            await config_resource.alter(_changes_of(resource), is_trial=is_trial)
        except TidelogError as error:
            why = refusal_of(error)
        responses.append(failed_item(kind, resource, why.error_code, why.message))
    return responses


def _count_names(resources: Iterable[_AlterResource]) -> Counter[tuple[int, str]]:
    return Counter((each.resource_type, each.resource_name) for each in resources)


def _find_resource(
    node: Node, resource: _AlterResource, names: Counter[tuple[int, str]], kinds: frozenset[int]
) -> ConfigResource | None:
    """Return the resource, or None if its type has no settings here.

    Raises:
        Refusal: The resource is named twice, or its type isn't in `kinds`.
    """
    kind, name = resource.resource_type, resource.resource_name
    if names[kind, name] > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if kind not in kinds:
        raise _unknown_kind(resource)
    return find_resource(node, kind, name)


def _unknown_kind(resource: _AlterResource) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")


def _changes_of(resource: _AlterResource) -> ConfigChanges:
    if isinstance(resource, IncrementalAlterConfigsResource):
        return ConfigChanges(
            tuple(ConfigChange(c.name, c.config_operation, c.value) for c in resource.configs)
        )
    changes = (ConfigChange(c.name, ConfigOperation.SET, c.value) for c in resource.configs)
    return ConfigChanges(tuple(changes), replaces_all=True)


# -- quotas --------------------------------------------------------------------------------------


_Parts: TypeAlias = tuple[tuple[str, str | None], ...]


_TWICE: Final = "Ignoring duplicate entity"


async def describe_client_quotas(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Long:
    """Describe the quotas of all entities that match a filter."""
    quotas = context.node.cluster.state.quotas
    try:
        quota_filter = filter_of(request.components, is_strict=request.strict)
    except Refusal as why:
        return DescribeClientQuotasResponse(
            error_code=why.error_code, error_message=why.message, entries=None
        )
    entries = await context.node.work.run_long(len(quotas), _describe, quotas, quota_filter)
    response = DescribeClientQuotasResponse(error_code=0, error_message="", entries=entries)
    return long_if_many(response, entries)


def _describe(quotas: Quotas, quota_filter: QuotaFilter) -> list[DescribedQuotas]:
    """Return the quotas of all entities that match a filter; safe in any thread."""
    return [_described_quota(entity, quotas[entity]) for entity in quota_filter.find(quotas)]


def _described_quota(entity: Entity, values: Mapping[str, float]) -> DescribedQuotas:
    return DescribedQuotas(
        entity=_parts(entity),
        values=[QuotaValue(key=key, value=values[key]) for key in KINDS if key in values],
    )


def _parts(entity: _Parts) -> list[QuotaEntity]:
    return [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]


async def alter_client_quotas(
    context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Set and remove quotas; the response is sent once the changes are durable and in force."""
    names = [_name(alteration) for alteration in request.entries]
    times = Counter(names)
    results = {name: AlteredQuotas(error_code=0, entity=_parts(name)) for name in times}

    def changed(state: ClusterState) -> ClusterState:
        quotas = dict(state.quotas)
        for name, alteration in zip(names, request.entries, strict=True):
            with errors_in(results[name]):
                _ensure_once(alteration, times[name])
                change(quotas, parts_of(alteration), alteration.ops)
        return state if request.validate_only else replace(state, quotas=quotas)

    try:
        await context.node.cluster.change(changed)
    except TidelogError as error:
        for result in results.values():
            set_error(result, error)
    return AlterClientQuotasResponse(entries=list(results.values()))


def _name(alteration: QuotaAlteration) -> _Parts:
    return tuple(sorted(parts_of(alteration).items()))


def _ensure_once(alteration: QuotaAlteration, times: int) -> None:
    """Raise Refusal if the request names the entity twice, or the alteration a key twice."""
    keys = [op.key for op in alteration.ops]
    if times > 1 or len(set(keys)) < len(keys):
        inside = ", ".join(f"{kind}={name}" for kind, name in _name(alteration))
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"{_TWICE} ClientQuotaEntity(entries={{{inside}}})"
        )


# -- rights --------------------------------------------------------------------------------------


class _Resource(Protocol):
    """A resource that a request names."""

    resource_type: int
    resource_name: str


_R = TypeVar("_R", bound=_Resource)


def _split(
    access: Access, resources: Iterable[_R], operation: Operation
) -> tuple[list[_R], list[tuple[_R, Refusal]]]:
    """Split resources by the client's rights; each denied one comes with its refusal."""
    allowed: list[_R] = []
    denied: list[tuple[_R, Refusal]] = []
    for resource in resources:
        name, code = resource.resource_name, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if resource.resource_type == TOPIC:
            may, code = access.may_topic(operation, name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif resource.resource_type == GROUP:
            may, code = access.may_group(operation, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            may = access.may_cluster(operation)
        if may:
            allowed.append(resource)
        else:
            denied.append((resource, Refusal(code, DENIED_TEXT[code])))
    return allowed, denied


def guard_describe_configs(
    access: Access, request: DescribeConfigsRequest
) -> Guarded[DescribeConfigsRequest]:
    """Require DESCRIBE_CONFIGS on each topic or group, on the cluster for other resources."""
    if not RESOURCE_KINDS.issuperset(each.resource_type for each in request.resources):
        return request, None  # the handler refuses all
    allowed, denied = _split(access, request.resources, Operation.DESCRIBE_CONFIGS)
    rows = [
        failed_item(DescribeConfigsResult, resource, why.error_code, why.message)
        for resource, why in denied
    ]
    return replace(request, resources=allowed), Denied.rows("results", rows)


def guard_alter_configs(
    access: Access, request: AlterConfigsRequest
) -> Guarded[AlterConfigsRequest]:
    """Require ALTER_CONFIGS on each topic or group, on the cluster for other resources."""
    kinds, kind = REPLACEABLE_KINDS, AlterConfigsResourceResponse
    allowed, rows = _split_alterations(access, request.resources, kinds, kind)
    return replace(request, resources=allowed), Denied.rows("responses", rows)


def guard_incremental_alter_configs(
    access: Access, request: IncrementalAlterConfigsRequest
) -> Guarded[IncrementalAlterConfigsRequest]:
    """Require ALTER_CONFIGS on each topic or group, on the cluster for other resources."""
    kinds, kind = RESOURCE_KINDS, IncrementalAlterConfigsResourceResponse
    allowed, rows = _split_alterations(access, request.resources, kinds, kind)
    return replace(request, resources=allowed), Denied.rows("responses", rows)


_A = TypeVar("_A", AlterConfigsResource, IncrementalAlterConfigsResource)


def _split_alterations(
    access: Access, resources: Sequence[_A], kinds: frozenset[int], kind: type[_Altered]
) -> tuple[list[_A], list[_Altered]]:
    """Split resources by the right to alter them; each denied one comes with its response.

    In Kafka, brokers validate a request before the controller checks rights. So an invalid change
    is reported as invalid even to a client without rights. Only values of topics and groups are
    checked later.
    """
    names, node, rows = _count_names(resources), access.context.node, []
    allowed, denied = _split(access, resources, Operation.ALTER_CONFIGS)
    for resource, denial in denied:
        why = denial
        try:
            config_resource = _find_resource(node, resource, names, kinds)
            changes = _changes_of(resource)
            if config_resource is None:
                changes.check()
            else:
                config_resource.check(changes)
        except Refusal as refusal:
            why = refusal
        rows.append(failed_item(kind, resource, why.error_code, why.message))
    return allowed, rows
