"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources and client quotas.

Changes of topics, groups and the broker apply while these are in use, as far as Kafka lets them
change. In AlterClientQuotas each entity may be named once; a refused entity doesn't affect others.

Source: Kafka's protocol guide, APIs 32, 33, 44, 48, 49 and 74; KIP-133, KIP-226, KIP-339, KIP-546,
KIP-1142; Kafka 4.3's ClientQuotaControlManager, KafkaApis, ControllerApis and ConfigHelper
(rights).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from tidelog.config import TopicConfig
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
    ConfigResource,
    ConfigSource,
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
    QuotaAlteration,
    QuotaEntity,
    QuotaValue,
)
from tidelog.server.admin.config_changes import (
    Change,
    ConfigOperation,
    changed_broker_settings,
    changed_group_settings,
    changed_settings,
    ensure_sound,
    ensure_valid,
    replaced_settings,
)
from tidelog.server.admin.config_display import (
    DescribedSetting,
    chosen,
    described_broker_settings,
    described_changes,
    described_topic_settings,
)
from tidelog.server.admin.quotas import KINDS, QuotaFilter, change, filter_of, parts_of
from tidelog.server.admin.topic_rules import ensure_name, parsed
from tidelog.server.api import topic_changes
from tidelog.server.api.config_resources import (
    Changing,
    alter_broker,
    alter_group,
    ensure_possible,
    group_settings,
)
from tidelog.server.api.context import Answer, Long, RequestContext, long_if_many
from tidelog.server.api.guards import (
    CLUSTER_DENIED_TEXT,
    DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    needs_cluster,
)
from tidelog.server.api.node import Node
from tidelog.server.runtime.errors import Refusal, refusal_of
from tidelog.server.runtime.loop import Slices
from tidelog.server.security.operations import Operation
from tidelog.storage.directory.broker_files import ALL_BROKERS, ClusterState, Entity, Quotas
from tidelog.storage.directory.topic_registry import TopicInfo


def _refuse_client_quotas(request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuotas(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message=CLUSTER_DENIED_TEXT,
                entity=entry.entity,
            )
            for entry in request.entries
        ]
    )


guard_alter_client_quotas: Final = needs_cluster(
    Operation.ALTER_CONFIGS, refuse=_refuse_client_quotas
)


TOPIC: Final = 2


BROKER: Final = 4


BROKER_LOGGER: Final = 8


CLIENT_METRICS: Final = 16


GROUP: Final = 32


# So many are described at once without a thought: a fraction of a millisecond each.
AT_ONCE: Final = 8


# Kinds of resources that can be asked for in a list: what we don't have has none.
_LISTABLE: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


DESCRIBED_KINDS: Final = _LISTABLE


# Whoever asks: what is of another kind can't be altered; levels of loggers only step by step.
ALTERED_KINDS: Final = _LISTABLE - {BROKER_LOGGER}


# -- looking -------------------------------------------------------------------------------------


def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> Answer:
    """The settings of topics and of the broker; each resource once, however often it is named.

    Where one is of no kind that there is, none is described.
    """
    if not DESCRIBED_KINDS.issuperset(each.resource_type for each in request.resources):
        return DescribeConfigsResponse(results=[_of_no_kind(each) for each in request.resources])
    asked = {(each.resource_type, each.resource_name): each for each in request.resources}
    if len(asked) > AT_ONCE:
        return _describe_many(context.node, list(asked.values()), request)
    results = [_described(context.node, resource, request) for resource in asked.values()]
    return DescribeConfigsResponse(results=results)


def _of_no_kind(resource: DescribeConfigsResource) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="The request asks for settings of an unknown resource type.",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def _describe_many(
    node: Node, asked: Sequence[DescribeConfigsResource], request: DescribeConfigsRequest
) -> Long:
    """The same, a slice at a time."""
    slices, results = Slices(node.env.clock), []
    for resource in asked:
        results.append(_described(node, resource, request))
        await slices.rest()
    return Long(DescribeConfigsResponse(results=results), results)


def _described(
    node: Node, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    found = DescribeConfigsResult(
        error_code=0,
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        settings = chosen(_settings_of(node, resource), resource.configuration_keys)
        found.configs = [_shown(setting, request) for setting in settings]
    except TidelogError as error:
        why = refusal_of(error)
        found.error_code, found.error_message = why.error_code, why.message or ""
    return found


def _told(text: str | None) -> str | None:
    """The value; null, as for passwords, where no string of the protocol holds it."""
    return None if text is None or not is_tellable(text) else text


def _shown(setting: DescribedSetting, request: DescribeConfigsRequest) -> DescribedConfig:
    layers = setting.layers if request.include_synonyms else ()
    return DescribedConfig(
        name=setting.name,
        value=_told(setting.value),
        read_only=setting.is_read_only,
        config_source=setting.source,
        is_sensitive=setting.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=layer.name, value=_told(layer.value), source=layer.source)
            for layer in layers
        ],
        config_type=setting.kind,
        documentation=setting.doc if request.include_documentation else None,
    )


def _settings_of(node: Node, resource: DescribeConfigsResource) -> list[DescribedSetting]:
    match resource.resource_type:
        case 2:
            ensure_name(resource.resource_name)
            info = node.topics.find(resource.resource_name)
            if info is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            defaults = node.started_config.topic_defaults
            return described_topic_settings(info.given, info.config, defaults, node.changed)
        case 4:
            if not resource.resource_name:
                texts = node.cluster.state.settings.get(ALL_BROKERS, {})
                return described_changes(texts, ConfigSource.DYNAMIC_DEFAULT_BROKER)
            _ensure_this_broker(node, resource.resource_name, "Broker", " or empty string")
            return described_broker_settings(node.started_config, _facts(node), node.changed)
        case 32:
            return group_settings(node, resource.resource_name)
    raise Refusal(
        ErrorCode.INVALID_REQUEST, f"no settings of resource type {resource.resource_type} here"
    )


def _facts(node: Node) -> Mapping[str, str]:
    """What is known of the broker only while it runs."""
    told = node.listeners or {"PLAINTEXT": node.address}
    facts = {
        "broker.id": str(node.node_id),
        "log.dirs": node.log_dir.path,
        "advertised.listeners": _by_name(told),
    }
    # A place on the command line, or a port that the system chose, wins over the setting.
    return facts | {"listeners": _by_name(node.places)} if node.places else facts


def _by_name(places: Mapping[str, object]) -> str:
    return ",".join(f"{name}://{place}" for name, place in places.items())


# Java's integers have ten digits.
_INTEGER: Final = re.compile("-?[0-9]{1,10}")


def _ensure_this_broker(node: Node, name: str, word: str, also: str = "") -> None:
    if _INTEGER.fullmatch(name) is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{word} id must be an integer, but it is: {name}")
    if int(name) != node.node_id:
        text = f"Unexpected broker id, expected {node.node_id}{also}, but received {name}"
        raise Refusal(ErrorCode.INVALID_REQUEST, text)


async def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | Long:
    """What has settings: topics, the broker, and groups that have some of their own."""
    kinds = set(request.resource_types) if context.version >= 1 else {CLIENT_METRICS}
    if kinds - _LISTABLE:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found = []
    if not kinds or BROKER in kinds:
        found.append(ConfigResource(resource_name=str(context.node.node_id), resource_type=BROKER))
    if not kinds or TOPIC in kinds:
        names = context.node.topics.names()
        found += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in names]
    if not kinds or GROUP in kinds:
        kept = context.node.cluster.state.groups
        found += [ConfigResource(resource_name=name, resource_type=GROUP) for name in kept]
    return long_if_many(ListConfigResourcesResponse(error_code=0, config_resources=found), found)


# -- changing ------------------------------------------------------------------------------------

_Changes: TypeAlias = Mapping[str, str | None]


class _Changing(NamedTuple):
    """What a request makes of a resource's settings; which names of a broker's get a value."""

    asked: list[Change]
    of_topic: Callable[[Mapping[str, str], TopicConfig], _Changes]
    of_broker: Changing
    of_group: Callable[[Mapping[str, str]], _Changes]
    names: list[str]


_Resource: TypeAlias = IncrementalAlterConfigsResource | AlterConfigsResource


_Answer = TypeVar("_Answer", IncrementalAlterConfigsResourceResponse, AlterConfigsResourceResponse)


def _changing(resource: _Resource) -> _Changing:
    """Settings that change while the others stay, or while those go back to their defaults."""
    if isinstance(resource, IncrementalAlterConfigsResource):
        asked = [Change(c.name, c.config_operation, c.value) for c in resource.configs]
        return _Changing(
            asked,
            partial(changed_settings, asked),
            partial(changed_broker_settings, asked),
            lambda _: changed_group_settings(asked),
            [change.name for change in asked if change.operation != ConfigOperation.DELETE],
        )
    asked = [Change(config.name, ConfigOperation.SET, config.value) for config in resource.configs]
    return _Changing(
        asked,
        lambda given, _: replaced_settings(asked, given),
        lambda given, _: replaced_settings(asked, given),
        partial(replaced_settings, asked),
        [change.name for change in asked],
    )


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings and leave the others."""
    kind = IncrementalAlterConfigsResourceResponse
    responses = await _alter(context.node, request.resources, kind, is_trial=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=responses)


async def alter_configs(
    context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Change settings; what is not named goes back to its default."""
    kind = AlterConfigsResourceResponse
    responses = await _alter(context.node, request.resources, kind, is_trial=request.validate_only)
    return AlterConfigsResponse(responses=responses)


async def _alter(
    node: Node,
    asked: Sequence[_Resource],
    answer: type[_Answer],
    *,
    is_trial: bool,
) -> list[_Answer]:
    """Change one resource after the other; each may be named once."""
    times = Counter((each.resource_type, each.resource_name) for each in asked)
    answers, slices = [], Slices(node.env.clock)
    for resource in asked:
        await slices.rest()
        kind, name = resource.resource_type, resource.resource_name
        told = answer(error_code=0, error_message=None, resource_type=kind, resource_name=name)
        try:
            _ensure_well_named(node, resource, times[kind, name])
            changes = _changing(resource)
            await _Plan(node, kind, name, is_trial=is_trial).carry_out(changes)
        except TidelogError as error:
            why = refusal_of(error)
            told.error_code, told.error_message = why.error_code, why.message
        answers.append(told)
    return answers


def ensure_sound_for_anybody(
    node: Node, resource: _Resource, times: int, kinds: frozenset[int]
) -> None:
    """What is said of a resource before anybody is asked for his rights: all but topics' values.

    Kafka's brokers look at these things before its controller asks who may.

    Raises:
        Refusal: It is ill named, or a change is asked that nobody can make.
    """
    _ensure_well_named(node, resource, times, kinds)
    changes = _changing(resource)
    ensure_sound(changes.asked)
    if resource.resource_type == BROKER:
        ensure_possible(node, resource.resource_name, changes.names, changes.of_broker)


def _ensure_well_named(
    node: Node, resource: _Resource, times: int, kinds: frozenset[int] = DESCRIBED_KINDS
) -> None:
    """Raise Refusal where it is named twice, of none of these kinds, or another broker."""
    if times > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if resource.resource_type not in kinds:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    if resource.resource_type == BROKER and resource.resource_name:
        _ensure_this_broker(node, resource.resource_name, "Node")


class _Plan:
    """One resource whose settings are to change."""

    def __init__(self, node: Node, kind: int, name: str, *, is_trial: bool) -> None:
        self._node = node
        self._kind = kind
        self._name = name
        self._is_trial = is_trial

    async def carry_out(self, changes_of: _Changing) -> None:
        """Check and make the changes; raises Refusal, TidelogError."""
        match self._kind:
            case 2:
                await self._alter_topic(changes_of.of_topic)
            case 4:
                await self._alter_broker(changes_of)
            case 32:
                await alter_group(
                    self._node, self._name, changes_of.of_group, is_trial=self._is_trial
                )
            case _:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {self._kind}")

    async def _alter_topic(
        self, changes_of: Callable[[Mapping[str, str], TopicConfig], _Changes]
    ) -> None:
        if not self._name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        ensure_name(self._name)
        defaults = self._node.config.topic_defaults
        if self._node.topics.find(self._name) is None:
            # What can't be, can't be of any topic: that is said first, as Kafka does.
            ensure_valid(changes_of({}, parsed({}, defaults)), {}, defaults)
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{self._name}' does not exist."
            )

        def checked(info: TopicInfo) -> _Changes:
            changes = changes_of(info.given, info.config)
            ensure_valid(changes, info.given, defaults)
            if self._is_trial:
                return {}
            # Back to the default goes only what is there, whatever it is called.
            return {n: text for n, text in changes.items() if text is not None or n in info.given}

        await topic_changes.alter(self._node, self._name, checked)

    async def _alter_broker(self, changes_of: _Changing) -> None:
        await alter_broker(
            self._node,
            self._name,
            changes_of.names,
            changes_of.of_broker,
            is_trial=self._is_trial,
        )


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
    return [_described_quota(entity, quotas[entity]) for entity in wanted.find(quotas)]


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


if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    class _ConfigsResource(Protocol):
        """Something that has settings."""

        resource_type: int
        resource_name: str


_ConfigsResponse = TypeVar(
    "_ConfigsResponse", AlterConfigsResourceResponse, IncrementalAlterConfigsResourceResponse
)


_R = TypeVar("_R", bound="_ConfigsResource")


_Split: TypeAlias = "tuple[list[_R], list[tuple[_R, int]]]"


# -- settings ------------------------------------------------------------------------------------


def _split(access: Access, resources: "Iterable[_R]", operation: Operation) -> "_Split[_R]":
    """Split resources by the right on their settings; the denied ones have their errors."""
    allowed: list[_R] = []
    denied: list[tuple[_R, int]] = []
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
            denied.append((resource, code))
    return allowed, denied


def guard_describe_configs(
    access: Access, request: DescribeConfigsRequest
) -> Guarded[DescribeConfigsRequest]:
    """DESCRIBE_CONFIGS on each topic or group, on the cluster for any other resource."""
    if not DESCRIBED_KINDS.issuperset(each.resource_type for each in request.resources):
        return request, None  # none is described
    allowed, denied = _split(access, request.resources, Operation.DESCRIBE_CONFIGS)
    refusals = [
        DescribeConfigsResult(
            error_code=code,
            error_message=DENIED_TEXT[code],
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, code in denied
    ]
    return replace(request, resources=allowed), Denied.rows("results", refusals)


_Altered: TypeAlias = "AlterConfigsResource | IncrementalAlterConfigsResource"


class _Refusals:
    """What is said of resources that may not be altered; what is wrong with them comes first."""

    def __init__(
        self, access: Access, resources: "Iterable[_Altered]", kinds: frozenset[int]
    ) -> None:
        self._node = access.context.node
        self._kinds = kinds
        self._times = Counter((each.resource_type, each.resource_name) for each in resources)

    def of(self, kind: type[_ConfigsResponse], resource: "_Altered", code: int) -> _ConfigsResponse:
        """The refusal of one."""
        times = self._times[resource.resource_type, resource.resource_name]
        try:
            ensure_sound_for_anybody(self._node, resource, times, self._kinds)
        except Refusal as error:
            return _refused(kind, resource, refusal_of(error))
        return _refused(kind, resource, Refusal(code, DENIED_TEXT[code]))


def _refused(
    kind: type[_ConfigsResponse], resource: "_ConfigsResource", why: Refusal
) -> _ConfigsResponse:
    return kind(
        error_code=why.error_code,
        error_message=why.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def guard_alter_configs(
    access: Access, request: AlterConfigsRequest
) -> Guarded[AlterConfigsRequest]:
    """ALTER_CONFIGS on each topic or group, on the cluster for any other resource."""
    refusals = _Refusals(access, request.resources, ALTERED_KINDS)
    allowed, denied = _split(access, request.resources, Operation.ALTER_CONFIGS)
    rows = (refusals.of(AlterConfigsResourceResponse, *each) for each in denied)
    return replace(request, resources=allowed), Denied.rows("responses", rows)


def guard_incremental_alter_configs(
    access: Access, request: IncrementalAlterConfigsRequest
) -> Guarded[IncrementalAlterConfigsRequest]:
    """ALTER_CONFIGS on each topic or group, on the cluster for any other resource."""
    refusals = _Refusals(access, request.resources, DESCRIBED_KINDS)
    allowed, denied = _split(access, request.resources, Operation.ALTER_CONFIGS)
    rows = (refusals.of(IncrementalAlterConfigsResourceResponse, *each) for each in denied)
    return replace(request, resources=allowed), Denied.rows("responses", rows)
