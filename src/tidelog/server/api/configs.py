"""Settings of topics, brokers and groups, and client quotas: describe, alter, list.

A `ConfigResource` is a topic, a broker or a group whose settings can be described and altered. The
settings of a group are stored and described whether the group exists or not. Changes take effect
without a restart. A change of a broker setting that is fixed at the start is refused. An
AlterClientQuotas request may name each entity (user, client id or both) only once. If one entity's
change is refused, the changes of other entities are still made.

`admin/config_changes.py` defines the operations of a change. `admin/config_display.py` defines how
a setting is shown.

Source: Kafka's protocol guide, APIs 32, 33, 44, 48, 49 and 74; KIP-133, KIP-226, KIP-339, KIP-546,
KIP-848, KIP-1142; Kafka 4.3's ClientQuotaControlManager, KafkaApis, ControllerApis and ConfigHelper
(rights).
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias, TypeVar

from tidelog.config import BROKER_CONFIG_BY_NAME, TopicConfig
from tidelog.config.broker import DYNAMIC_CONFIGS, TOPIC_DEFAULTS, changed_config, is_list
from tidelog.config.group import (
    bounds,
    broker_name,
    ensure_group_texts,
    is_bounded,
    is_group_setting,
)
from tidelog.config.topic import TOPIC_CONFIG_BY_NAME, broker_names
from tidelog.config.unused_keys import ONE_BROKERS, WITHOUT_EFFECT
from tidelog.config.values import is_tellable
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError, TidelogError
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    AlteredQuotas,
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
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
    QuotaAlteration,
    QuotaValue,
)
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.server.admin.config_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    NewTexts,
    merged,
    not_a_list,
)
from tidelog.server.admin.config_display import (
    ConfigEntry,
    describe_broker,
    describe_changes,
    describe_group,
    describe_topic,
)
from tidelog.server.admin.quotas import KINDS, QuotaFilter, change, filter_of, parts_of
from tidelog.server.admin.topic_rules import config_refusal, ensure_name, parsed
from tidelog.server.api import topic_changes
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many
from tidelog.server.api.guards import (
    DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    failed_item,
)
from tidelog.server.api.node import Node
from tidelog.server.runtime.errors import Refusal, errors_in, refusal_of, set_error
from tidelog.server.runtime.loop import Slices, in_slices
from tidelog.server.security.operations import Operation
from tidelog.storage.directory.broker_files import (
    ALL_BROKERS,
    ClusterState,
    Entity,
    Quotas,
    settings_of,
)
from tidelog.storage.directory.topic_registry import TopicInfo

# Kafka's codes of resource types.
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

# Maximum number of groups with settings of their own. The maximum limits the size of
# `tidelog-cluster.json`, which contains the settings of all groups. Each change of a setting
# rewrites the file.
GROUPS_MAX: Final = 10_000

NAME_CHARACTERS_MAX: Final = 249

# An integer with at most ten digits, because the largest int in Java has ten digits.
_INTEGER: Final = re.compile("-?[0-9]{1,10}")


class ConfigResource(ABC):
    """A topic, a broker or a group that a request names."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name

    @abstractmethod
    def describe(self) -> list[ConfigEntry]:
        """Return the resource's settings. Raises Refusal if the settings can't be described."""

    def check(self, changes: ConfigChanges) -> None:
        """Make the checks that Kafka makes before it checks the client's rights.

        Raises Refusal if a check fails.
        """
        changes.check()

    @abstractmethod
    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """Change settings, or only validate the changes.

        When this returns, the changes are durable and in force, unless `is_trial` is true.

        Args:
            changes: The changes.
            is_trial: Whether to validate the changes without making them.

        Raises:
            Refusal: The resource can't be altered, or a setting or a value is invalid.
            UnknownTopic: The topic was deleted meanwhile.
            StorageFailure: The change could not be stored. Nothing was changed.
        """


class TopicResource(ConfigResource):
    """A topic's settings."""

    def describe(self) -> list[ConfigEntry]:
        """Return the topic's settings."""
        ensure_name(self.name)
        info = self.node.topics.find(self.name)
        if info is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        defaults = self.node.started_config.topic_defaults
        return describe_topic(info.given, info.config, defaults, self.node.changed)

    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """Change the topic's settings, or only validate the changes."""
        if not self.name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        ensure_name(self.name)
        defaults = self.node.config.topic_defaults

        def new_texts(overrides: Mapping[str, str], config: TopicConfig) -> NewTexts:
            texts = topic_texts(changes, overrides, config)
            parsed(merged(overrides, texts), defaults)
            return texts

        if self.node.topics.find(self.name) is None:
            # As in Kafka, invalid settings are reported before a missing topic. So the settings are
            # validated here although the topic doesn't exist.
            new_texts({}, parsed({}, defaults))
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{self.name}' does not exist."
            )

        def checked(info: TopicInfo) -> NewTexts:
            texts = new_texts(info.given, info.config)
            if is_trial:
                return {}
            # A reset changes nothing if the topic has no value of its own for the setting. Such a
            # reset is not passed to `alter`, because `alter` raises an error for an unknown name.
            return {n: text for n, text in texts.items() if text is not None or n in info.given}

        await topic_changes.alter(self.node, self.name, checked)


def topic_texts(
    changes: ConfigChanges, overrides: Mapping[str, str], config: TopicConfig
) -> dict[str, str | None]:
    """Return the new texts of a topic's settings; raises the errors of `ConfigChanges.apply`.

    Args:
        changes: The changes.
        overrides: The topic's own settings before the change.
        config: All settings of the topic before the change. They give the old value of a list
            setting that `overrides` does not contain.
    """

    def list_text(change: ConfigChange) -> str:
        key = TOPIC_CONFIG_BY_NAME.get(change.name)
        if key is None or key.kind.type_name != "list":
            raise not_a_list(change)
        return overrides.get(change.name, config.text(change.name))

    return changes.apply(overrides, list_text)


class BrokerResource(ConfigResource):
    """Settings of this broker, or of all brokers if the name is empty."""

    def describe(self) -> list[ConfigEntry]:
        """Return the settings of this broker, or of all brokers."""
        node = self.node
        if not self.name:
            texts = node.cluster.state.settings.get(ALL_BROKERS, {})
            return describe_changes(texts, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        self._ensure_here("Broker", " or empty string")
        return describe_broker(node.started_config, _facts(node), node.changed)

    def _ensure_this_node(self) -> None:
        if self.name:
            self._ensure_here("Node")

    def _ensure_here(self, word: str, also: str = "") -> None:
        name, node_id = self.name, self.node.node_id
        if _INTEGER.fullmatch(name) is None:
            text = f"{word} id must be an integer, but it is: {name}"
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
        if int(name) != node_id:
            text = f"Unexpected broker id, expected {node_id}{also}, but received {name}"
            raise Refusal(ErrorCode.INVALID_REQUEST, text)

    def check(self, changes: ConfigChanges) -> None:
        """Check the changes before the client's rights are checked.

        As in Kafka, unknown settings pass this check, so that a client without rights gets the
        authorization error for them.
        """
        self._ensure_this_node()
        try:
            self._changed_state(self.node.cluster.state, changes)
        except UnknownSettings:
            return
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error

    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """Change the settings of this broker, or of all brokers, or only validate the changes."""
        self._ensure_this_node()

        def change(state: ClusterState) -> ClusterState:
            changed = self._changed_state(state, changes)
            return state if is_trial else changed

        try:
            await self.node.cluster.change(change)
        except ConfigError as error:  # e.g. a conflict with a topic's own settings
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error

    def _changed_state(self, state: ClusterState, changes: ConfigChanges) -> ClusterState:
        """Return the state after a change; raises Refusal or ConfigError for an invalid change."""
        node = self.node
        broker = str(node.node_id) if self.name else ALL_BROKERS
        overrides = state.settings.get(broker, {})
        effective = {**settings_of(state, node.node_id), **overrides}

        def list_text(change: ConfigChange) -> str:
            if not is_list(change.name):
                word = ConfigOperation(change.operation).name.lower()
                text = f"Config value {word} is not allowed for config key: {change.name}"
                raise Refusal(ErrorCode.INVALID_CONFIG, text)
            if change.name not in effective and change.name in TOPIC_DEFAULTS:
                return TOPIC_DEFAULTS[change.name].default or ""
            return effective.get(change.name, "")

        changes.check()
        for each in changes.changes:
            if each.operation not in frozenset(ConfigOperation):
                text = f"Unknown operations type {each.operation}"
                raise Refusal(ErrorCode.INVALID_REQUEST, text)
        own = merged(overrides, changes.apply(overrides, list_text))
        _ensure_dynamic(changes.set_names)
        if not self.name:
            _ensure_for_all(changes.set_names)
        changed = state._replace(settings=_with(state.settings, broker, own))
        changed_config(node.started_config, settings_of(changed, node.node_id))
        changed_config(node.started_config, changed.settings.get(ALL_BROKERS, {}))
        return changed


class UnknownSettings(Refusal):
    """Refusal of a change because it names broker settings that don't exist."""


def _facts(node: Node) -> Mapping[str, str]:
    """Return the settings whose values come from the running broker, not from its configuration."""
    advertised = node.listeners or {"PLAINTEXT": node.address}
    facts = {
        "broker.id": str(node.node_id),
        "log.dirs": node.log_dir.path,
        "advertised.listeners": _by_name(advertised),
    }
    # An address from the command line, or a port that the system chose, overrides the setting.
    return facts | {"listeners": _by_name(node.bound_addresses)} if node.bound_addresses else facts


def _by_name(addresses: Mapping[str, object]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


def _ensure_dynamic(names: Iterable[str]) -> None:
    fixed = [name for name in names if name not in DYNAMIC_CONFIGS]
    valid_names = BROKER_CONFIG_BY_NAME.keys() | WITHOUT_EFFECT.keys() | broker_names()
    unknown = [name for name in fixed if name not in valid_names]
    if unknown:
        raise UnknownSettings(
            ErrorCode.INVALID_REQUEST, f"Unknown broker configs: [{', '.join(unknown)}]"
        )
    if fixed:
        text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
        raise Refusal(ErrorCode.INVALID_REQUEST, text)


def _ensure_for_all(names: Iterable[str]) -> None:
    single = [name for name in names if name in ONE_BROKERS]
    if single:
        text = "Cannot update these configs at default cluster level, broker id must be specified"
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(single)}]")


class GroupResource(ConfigResource):
    """A group's settings."""

    def describe(self) -> list[ConfigEntry]:
        """Return the group's settings."""
        if not self.name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        overrides = self.node.cluster.state.groups.get(self.name, {})
        return describe_group(overrides, self.node.started_config)

    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """Change the group's settings, or only validate the changes.

        APPEND and SUBTRACT are refused, because no setting of a group is a list.
        """
        if not self.name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

        def list_text(change: ConfigChange) -> str:
            raise not_a_list(change)

        def change(state: ClusterState) -> ClusterState:
            overrides = state.groups.get(self.name, {})
            own = merged(overrides, changes.apply(overrides, list_text))
            self._ensure_valid(own)
            if own:
                self._ensure_room(len(state.groups.keys() - {self.name}))
            return state if is_trial else state._replace(groups=_with(state.groups, self.name, own))

        await self.node.cluster.change(change)

    def _ensure_room(self, other_groups: int) -> None:
        if other_groups >= GROUPS_MAX:
            text = f"{GROUPS_MAX} groups have settings of their own, which is the maximum"
            raise Refusal(ErrorCode.POLICY_VIOLATION, text)
        if len(self.name) > NAME_CHARACTERS_MAX:
            text = (
                f"the name of a group with settings has more than {NAME_CHARACTERS_MAX} characters"
            )
            raise Refusal(ErrorCode.POLICY_VIOLATION, text)

    def _ensure_valid(self, texts: Mapping[str, str]) -> None:
        unknown = next((name for name in texts if not is_group_setting(name)), None)
        if unknown is not None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {unknown}")
        try:
            ensure_group_texts(texts)
        except ConfigError as error:
            raise config_refusal(error) from error
        for name in filter(is_bounded, texts):
            low, high = bounds(name, self.node.config)
            value = int(texts[name])
            if value < low:
                text = f"{name} must be greater than or equal to {broker_name(name, 'min.')}"
                raise Refusal(ErrorCode.INVALID_CONFIG, text)
            if value > high:
                text = f"{name} must be less than or equal to {broker_name(name, 'max.')}"
                raise Refusal(ErrorCode.INVALID_CONFIG, text)


def _with(
    settings: Mapping[str, Mapping[str, str]], name: str, own: Mapping[str, str]
) -> Mapping[str, Mapping[str, str]]:
    """Return a copy of `settings` in which resource `name` has the settings `own`.

    If `own` is empty, the copy does not contain the resource.
    """
    others = {each: texts for each, texts in settings.items() if each != name}
    return {**others, name: own} if own else others


# Resource types that have settings on this broker.
_CLASSES: Final[Mapping[int, type[ConfigResource]]] = {
    TOPIC: TopicResource,
    BROKER: BrokerResource,
    GROUP: GroupResource,
}


def find_resource(node: Node, kind: int, name: str) -> ConfigResource | None:
    """Return the resource with a type and name.

    Return None if resources of this type have no settings on this broker.
    """
    resource_class = _CLASSES.get(kind)
    return None if resource_class is None else resource_class(node, name)


# Maximum number of resources in a response to DescribeConfigs that is encoded on the event loop.
# Encoding takes long, because the response has all settings of each resource.
AT_ONCE: Final = 8

# Resource types that requests may name. Resources of some of these types have no settings on this
# broker. ListConfigResources does not list such resources.
RESOURCE_KINDS: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})

# Resource types that AlterConfigs may name. In Kafka, only IncrementalAlterConfigs can alter the
# levels of loggers.
REPLACEABLE_KINDS: Final = RESOURCE_KINDS - {BROKER_LOGGER}


# -- describe ------------------------------------------------------------------------------------


async def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | LargeResponse:
    """Describe the settings of resources. A resource that is named twice is described once.

    If any resource has an unknown type, the whole request is refused.
    """
    if not RESOURCE_KINDS.issuperset(each.resource_type for each in request.resources):
        code, text = ErrorCode.INVALID_REQUEST, "Unknown resource type in the request."
        return DescribeConfigsResponse(
            results=[
                failed_item(DescribeConfigsResult, each, code, text) for each in request.resources
            ]
        )
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    node = context.node
    described = (_described(node, each, request) for each in resources.values())
    results = await in_slices(node.env.clock, described)
    response = DescribeConfigsResponse(results=results)
    return LargeResponse(response, results) if len(results) > AT_ONCE else response


def _described(
    node: Node, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    try:
        config_resource = find_resource(node, kind, name)
        if config_resource is None:
            text = f"resource type {kind} has no settings on this broker"
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
        entries, keys = config_resource.describe(), set(resource.configuration_keys or ())
    except TidelogError as error:
        refusal = refusal_of(error)
        return failed_item(
            DescribeConfigsResult, resource, refusal.error_code, refusal.message or ""
        )
    return DescribeConfigsResult(
        error_message="",
        resource_type=kind,
        resource_name=name,
        configs=[
            _described_entry(entry, request) for entry in entries if not keys or entry.name in keys
        ],
    )


def _visible(text: str | None) -> str | None:
    """Return a setting's value; None if there is no value, or it is too long for the protocol."""
    return None if text is None or not is_tellable(text) else text


def _described_entry(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribedConfig:
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
) -> ListConfigResourcesResponse | LargeResponse:
    """List the resources with settings: this broker, topics, and groups with own settings.

    A request of version 0 lists only resources of client metrics. This broker has no such
    resources, so the list is empty.
    """
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
    response = ListConfigResourcesResponse(config_resources=resources)
    return large_if_many(response, resources)


# -- alter ---------------------------------------------------------------------------------------

_AlterResource: TypeAlias = IncrementalAlterConfigsResource | AlterConfigsResource


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change the named settings and leave all other settings unchanged."""
    return IncrementalAlterConfigsResponse(responses=await _alter(context.node, request))


async def alter_configs(
    context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """For each resource, change the named settings and reset all other settings."""
    return AlterConfigsResponse(responses=await _alter(context.node, request))


async def _alter(
    node: Node, request: IncrementalAlterConfigsRequest | AlterConfigsRequest
) -> list[AlterConfigsResourceResponse]:
    """Change the settings of resources one after the other.

    Returns the result of each resource. A resource that the request names twice is refused.
    """
    resources: Sequence[_AlterResource] = request.resources
    names, responses, slices = _count_names(resources), [], Slices(node.env.clock)
    for resource in resources:
        await slices.rest()
        result = failed_item(AlterConfigsResourceResponse, resource, ErrorCode.NONE)
        with errors_in(result):
            config_resource = _find_resource(node, resource, names, RESOURCE_KINDS)
            if config_resource is None:
                raise _unknown_kind(resource)
            await config_resource.alter(_changes_of(resource), is_trial=request.validate_only)
        responses.append(result)
    return responses


def _count_names(resources: Iterable[_AlterResource]) -> Counter[tuple[int, str]]:
    return Counter((each.resource_type, each.resource_name) for each in resources)


def _find_resource(
    node: Node, resource: _AlterResource, names: Counter[tuple[int, str]], kinds: frozenset[int]
) -> ConfigResource | None:
    """Return the resource; None if resources of its type have no settings on this broker.

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
) -> DescribeClientQuotasResponse | LargeResponse:
    """Describe the quotas of all entities that match a filter."""
    quotas = context.node.cluster.state.quotas
    try:
        quota_filter = filter_of(request.components, is_strict=request.strict)
    except Refusal as refusal:
        return DescribeClientQuotasResponse(
            error_code=refusal.error_code, error_message=refusal.message, entries=None
        )
    entries = await context.node.work.run_long(len(quotas), _describe, quotas, quota_filter)
    response = DescribeClientQuotasResponse(error_message="", entries=entries)
    return large_if_many(response, entries)


def _describe(quotas: Quotas, quota_filter: QuotaFilter) -> list[DescribedQuotas]:
    """Return the quotas of all entities that match a filter. Any thread may call this."""
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
    """Set and remove quotas. The response is sent once the changes are durable and in force.

    With `validate_only` nothing is changed.
    """
    names = [_name(alteration) for alteration in request.entries]
    times = Counter(names)
    results = {name: AlteredQuotas(entity=_parts(name)) for name in times}

    def changed(state: ClusterState) -> ClusterState:
        quotas = dict(state.quotas)
        for name, alteration in zip(names, request.entries, strict=True):
            with errors_in(results[name]):
                _ensure_once(alteration, times[name])
                change(quotas, parts_of(alteration), alteration.ops)
        return state if request.validate_only else state._replace(quotas=quotas)

    try:
        await context.node.cluster.change(changed)
    except TidelogError as error:
        for result in results.values():
            set_error(result, error)
    return AlterClientQuotasResponse(entries=list(results.values()))


def _name(alteration: QuotaAlteration) -> _Parts:
    return tuple(sorted(parts_of(alteration).items()))


def _ensure_once(alteration: QuotaAlteration, times: int) -> None:
    """Raise Refusal if the request names the entity twice, or the alteration names a key twice."""
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
    """Return the resources on which the client may perform an operation, and denied resources.

    Each denied resource is paired with its refusal.
    """
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
    """Require DESCRIBE_CONFIGS on each topic and group, and on the cluster for other resources."""
    if not RESOURCE_KINDS.issuperset(each.resource_type for each in request.resources):
        return request, None  # the handler refuses the whole request
    allowed, denied = _split(access, request.resources, Operation.DESCRIBE_CONFIGS)
    rows = [
        failed_item(DescribeConfigsResult, resource, refusal.error_code, refusal.message)
        for resource, refusal in denied
    ]
    return replace(request, resources=allowed), Denied.rows("results", rows)


def guard_alter_configs(
    access: Access, request: AlterConfigsRequest
) -> Guarded[AlterConfigsRequest]:
    """Require ALTER_CONFIGS on each topic and group, and on the cluster for other resources."""
    allowed, rows = _split_alterations(access, request.resources, REPLACEABLE_KINDS)
    return replace(request, resources=allowed), Denied.rows("responses", rows)


def guard_incremental_alter_configs(
    access: Access, request: IncrementalAlterConfigsRequest
) -> Guarded[IncrementalAlterConfigsRequest]:
    """Require ALTER_CONFIGS on each topic and group, and on the cluster for other resources."""
    allowed, rows = _split_alterations(access, request.resources, RESOURCE_KINDS)
    return replace(request, resources=allowed), Denied.rows("responses", rows)


_A = TypeVar("_A", AlterConfigsResource, IncrementalAlterConfigsResource)


def _split_alterations(
    access: Access, resources: Sequence[_A], kinds: frozenset[int]
) -> tuple[list[_A], list[AlterConfigsResourceResponse]]:
    """Return the resources that the client may alter, and the responses to denied resources.

    In Kafka, brokers validate a request before the controller checks rights. So even a client
    without rights gets the error for an invalid change, not the authorization error. The validation
    finds resources that are named twice and types that are not in `kinds`. In the changes of a
    topic or group, it finds only duplicate settings and null values.
    """
    names, node, rows = _count_names(resources), access.context.node, []
    allowed, denied = _split(access, resources, Operation.ALTER_CONFIGS)
    for resource, denial in denied:
        refusal = denial
        try:
            config_resource = _find_resource(node, resource, names, kinds)
            changes = _changes_of(resource)
            if config_resource is None:
                changes.check()
            else:
                config_resource.check(changes)
        except Refusal as error:
            refusal = error
        code, text = refusal.error_code, refusal.message
        rows.append(failed_item(AlterConfigsResourceResponse, resource, code, text))
    return allowed, rows
