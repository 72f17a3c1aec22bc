"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources.

Topics' settings change while they are used. The broker's are those it was started with: a change
is refused as Kafka refuses one of a read-only setting.

Source: Kafka's protocol guide, APIs 32, 44, 33 and 74; KIP-133, KIP-226, KIP-339, KIP-1142.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tidelog.config import BROKER_CONFIG_BY_NAME
from tidelog.config.resolve import broker_names
from tidelog.errors import TidelogError
from tidelog.protocol.messages.altered_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    DescribedConfig,
)
from tidelog.server import topic_changes
from tidelog.server.config_changes import (
    Change,
    changed_settings,
    ensure_valid,
    replaced_settings,
)
from tidelog.server.config_values import (
    DescribedSetting,
    chosen,
    described_broker_settings,
    described_topic_settings,
)
from tidelog.server.errors import Refusal, refusal_of
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.server.topic_rules import INVALID_REQUEST, UNKNOWN_TOPIC, ensure_name
from tidelog.storage.topics import TopicInfo

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
UNSUPPORTED_VERSION: Final = 35
# Kinds of resources that can be asked for in a list: what we don't have has none.
_LISTABLE: Final = frozenset({TOPIC, BROKER, 8, CLIENT_METRICS, 32})


# -- looking -------------------------------------------------------------------------------------


def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """The settings of topics and of the broker; each resource once, however often it is named."""
    asked = {(each.resource_type, each.resource_name): each for each in request.resources}
    results = [_described(context.node, resource, request) for resource in asked.values()]
    return DescribeConfigsResponse(results=results)


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


def _shown(setting: DescribedSetting, request: DescribeConfigsRequest) -> DescribedConfig:
    layers = setting.layers if request.include_synonyms else ()
    return DescribedConfig(
        name=setting.name,
        value=setting.value,
        read_only=setting.is_read_only,
        config_source=setting.source,
        synonyms=[
            DescribeConfigsSynonym(name=layer.name, value=layer.value, source=layer.source)
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
                raise Refusal(UNKNOWN_TOPIC)
            return described_topic_settings(info.given, info.config, node.config.topic_defaults)
        case 4:
            if not resource.resource_name:  # the defaults of all brokers: none were ever set
                return []
            _ensure_this_broker(node, resource.resource_name, "Broker", " or empty string")
            return described_broker_settings(node.config, _facts(node))
    raise Refusal(INVALID_REQUEST, f"no settings of resource type {resource.resource_type} here")


def _facts(node: Node) -> Mapping[str, str]:
    """What is known of the broker only while it runs."""
    place = node.address
    host = f"[{place.host}]" if ":" in place.host else place.host
    return {
        "log.dirs": node.log_dir.path,
        "advertised.listeners": f"PLAINTEXT://{host}:{place.port}",
    }


def _ensure_this_broker(node: Node, name: str, word: str, also: str = "") -> None:
    if not name.isascii() or not name.lstrip("-").isdigit():
        raise Refusal(INVALID_REQUEST, f"{word} id must be an integer, but it is: {name}")
    if int(name) != node.node_id:
        text = f"Unexpected broker id, expected {node.node_id}{also}, but received {name}"
        raise Refusal(INVALID_REQUEST, text)


def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """What has settings: topics and the broker."""
    kinds = set(request.resource_types) if context.version >= 1 else {CLIENT_METRICS}
    if kinds - _LISTABLE:
        return ListConfigResourcesResponse(error_code=UNSUPPORTED_VERSION)
    found = []
    if not kinds or BROKER in kinds:
        found.append(ConfigResource(resource_name=str(context.node.node_id), resource_type=BROKER))
    if not kinds or TOPIC in kinds:
        names = context.node.topics.names()
        found += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in names]
    return ListConfigResourcesResponse(error_code=0, config_resources=found)


# -- changing ------------------------------------------------------------------------------------

_Changes: TypeAlias = Mapping[str, str | None]


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings and leave the others."""

    def changes(resource: IncrementalAlterConfigsResource) -> Callable[[TopicInfo], _Changes]:
        asked = [Change(c.name, c.config_operation, c.value) for c in resource.configs]
        return lambda info: changed_settings(asked, info.given, info.config)

    times = Counter((r.resource_type, r.resource_name) for r in request.resources)
    responses = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        answer = IncrementalAlterConfigsResourceResponse(
            error_code=0, error_message=None, resource_type=kind, resource_name=name
        )
        names = [config.name for config in resource.configs]
        try:
            _ensure_single(times[kind, name])
            plan = _Plan(context.node, kind, name, names, is_trial=request.validate_only)
            await plan.carry_out(changes(resource))
        except TidelogError as error:
            why = refusal_of(error)
            answer.error_code, answer.error_message = why.error_code, why.message
        responses.append(answer)
    return IncrementalAlterConfigsResponse(responses=responses)


async def alter_configs(
    context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Change settings; what is not named goes back to its default."""

    def changes(resource: AlterConfigsResource) -> Callable[[TopicInfo], _Changes]:
        asked = [(config.name, config.value) for config in resource.configs]
        return lambda info: replaced_settings(asked, info.given)

    times = Counter((r.resource_type, r.resource_name) for r in request.resources)
    responses = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        answer = AlterConfigsResourceResponse(
            error_code=0, error_message=None, resource_type=kind, resource_name=name
        )
        names = [config.name for config in resource.configs]
        try:
            _ensure_single(times[kind, name])
            plan = _Plan(context.node, kind, name, names, is_trial=request.validate_only)
            await plan.carry_out(changes(resource))
        except TidelogError as error:
            why = refusal_of(error)
            answer.error_code, answer.error_message = why.error_code, why.message
        responses.append(answer)
    return AlterConfigsResponse(responses=responses)


def _ensure_single(times: int) -> None:
    if times > 1:
        raise Refusal(INVALID_REQUEST, "Each resource must appear at most once.")


class _Plan:
    """One resource whose settings are to change."""

    def __init__(
        self, node: Node, kind: int, name: str, settings: list[str], *, is_trial: bool
    ) -> None:
        self._node = node
        self._kind = kind
        self._name = name
        self._settings = settings
        self._is_trial = is_trial

    async def carry_out(self, changes_of: Callable[[TopicInfo], _Changes]) -> None:
        """Check and make the changes; raises Refusal, TidelogError."""
        match self._kind:
            case 2:
                await self._alter_topic(changes_of)
            case 4:
                self._refuse_broker()
            case _:
                raise Refusal(INVALID_REQUEST, f"Unknown resource type {self._kind}")

    async def _alter_topic(self, changes_of: Callable[[TopicInfo], _Changes]) -> None:
        if not self._name:
            raise Refusal(INVALID_REQUEST, "Default topic resources are not allowed.")
        ensure_name(self._name)
        if self._node.topics.find(self._name) is None:
            raise Refusal(UNKNOWN_TOPIC, f"The topic '{self._name}' does not exist.")
        defaults = self._node.config.topic_defaults

        def checked(info: TopicInfo) -> _Changes:
            changes = changes_of(info)
            ensure_valid(changes, info.given, defaults)
            if self._is_trial:
                return {}
            # Back to the default goes only what is there, whatever it is called.
            return {n: text for n, text in changes.items() if text is not None or n in info.given}

        await topic_changes.alter(self._node, self._name, checked)

    def _refuse_broker(self) -> None:
        if self._name:
            _ensure_this_broker(self._node, self._name, "Node")
        fixed = [n for n in self._settings if n in BROKER_CONFIG_BY_NAME or n in broker_names()]
        unknown = [name for name in self._settings if name not in fixed]
        if unknown:
            raise Refusal(INVALID_REQUEST, f"Unknown broker configs: [{', '.join(unknown)}]")
        if fixed:
            text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            raise Refusal(INVALID_REQUEST, text)
