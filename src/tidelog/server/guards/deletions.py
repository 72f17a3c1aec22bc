"""Guard of DeleteTopics. Source: Kafka 4.3's ControllerApis."""

from collections import Counter
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.guards.common import DENIED_TEXT, Asker, then
from tidelog.server.handlers.topics import NOT_HOSTED
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation


def delete_topics(asker: Asker, request: DeleteTopicsRequest) -> Answer:
    """DELETE on the cluster or on each topic.

    Who may not describe one that he named by its id hears no name; who may describe one that is not
    there hears that it is not there. One that is named twice, or by name and id, is refused for
    that, by the handler.
    """
    states = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    times = Counter(_key_of(state) for state in states if not _has_both(state))

    def name_of(state: DeleteTopicState) -> str | None:
        return asker.name_of(state.topic_id) if state.name is None else state.name

    def denied_name_of(state: DeleteTopicState) -> str | None:
        name = name_of(state)
        if _has_both(state) or times[_key_of(state)] > 1:
            return None
        is_there = name is not None and asker.context.node.topics.find(name) is not None
        return None if not is_there and asker.may_describe(name) else name

    if asker.may_cluster(Operation.DELETE):
        return asker.go_on(request)
    allowed, denied = asker.split(states, Operation.DELETE, denied_name_of)
    absent, allowed = _absent_of(asker, allowed, times)
    refused = [
        DeletableTopicResult(
            name=name,
            topic_id=NO_UUID,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=NOT_HOSTED,
        )
        for name in absent
    ]
    for state in denied:
        name = name_of(state)
        if state.name is None and not asker.may_describe(name):
            name = None
        refused.append(
            DeletableTopicResult(
                name=name,
                topic_id=state.topic_id,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=DENIED_TEXT[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
            )
        )
    request.topics, request.topic_names = allowed, []
    if not allowed:
        return DeleteTopicsResponse(responses=refused)

    def add(said: DeleteTopicsResponse) -> None:
        said.responses.extend(refused)

    return then(asker.go_on(request), add)


def _key_of(state: DeleteTopicState) -> str | UUID:
    return state.topic_id if state.name is None else state.name


def _has_both(state: DeleteTopicState) -> bool:
    return state.name is not None and state.topic_id != NO_UUID


def _absent_of(
    asker: Asker, states: list[DeleteTopicState], times: Counter[str | UUID]
) -> tuple[dict[str, None], list[DeleteTopicState]]:
    """Names of which nothing is there and nothing may be deleted, and the other states.

    They are answered at once: should a topic of such a name come while others are being deleted,
    nobody would ask for rights again. Where none is deleted at all the handler says so.
    """
    absent: dict[str, None] = {}
    others = []
    is_enabled = asker.context.node.config.delete_topic_enable
    for state in states:
        name = state.name
        if (
            name is None
            or not is_enabled
            or state.topic_id != NO_UUID
            or times[name] > 1
            or asker.may_topic(Operation.DELETE, name)
        ):
            others.append(state)
        else:
            absent[name] = None
    return absent, others
