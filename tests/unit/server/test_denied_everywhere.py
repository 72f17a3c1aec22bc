"""Each version of a guarded API refuses a client without rights by a response that can be sent."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.records.messages import Fill, Sampler, samples

from tidelog.config import BrokerConfig
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import BY_KEY
from tidelog.protocol.requests import ReceivedRequest, write_response
from tidelog.protocol.schema import fields_of
from tidelog.server.api.context import RequestContext
from tidelog.server.api.guards import DENIED_TEXT, Access
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.table import ROWS, Row, guard_of
from tidelog.server.broker import open_node
from tidelog.server.runtime.errors import NotLoggedIn, UnansweredRequest
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.authorizer import ALL_USERS, WILDCARD, Acl, Authorizer
from tidelog.server.security.operations import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# APIs whose error codes are not checked: they have no data to deny, or they refuse the sample for
# another reason first (an unknown resource type).
WITHOUT_CODE = {
    "AlterConfigs",
    "DescribeCluster",
    "DescribeConfigs",
    "IncrementalAlterConfigs",
    "ListGroups",
    "ListTransactions",
    "Metadata",
}

# The first version whose refusals have an error code. Older versions have an empty list, as in
# Kafka.
FIRST_WITH_CODE = {"DescribeLogDirs": 3}

# For each error code, the APIs that return it if a right is missing. All other APIs return
# CLUSTER_AUTHORIZATION_FAILED.
CODES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: {
        "CreatePartitions",
        "CreateTopics",
        "DeleteRecords",
        "DeleteTopics",
        "DescribeProducers",
        "DescribeTopicPartitions",
        "ListOffsets",
        "OffsetForLeaderEpoch",
    },
    ErrorCode.GROUP_AUTHORIZATION_FAILED: {
        "AlterShareGroupOffsets",
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "DeleteGroups",
        "DeleteShareGroupOffsets",
        "DescribeGroups",
        "DescribeShareGroupOffsets",
        "Heartbeat",
        "JoinGroup",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetDelete",
        "OffsetFetch",
        "ShareGroupDescribe",
        "ShareGroupHeartbeat",
        "SyncGroup",
    },
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: {
        "AddOffsetsToTxn",
        "DescribeTransactions",
        "EndTxn",
        "FindCoordinator",
        "InitProducerId",
        "TxnOffsetCommit",
    },
}

# For each operation, the APIs that need this operation on the resource of their error code. Left
# out are `WITHOUT_CODE`; DeleteTopics, which needs DESCRIBE to name a topic that does not exist and
# DELETE to delete one; DescribeShareGroupOffsets, whose refusals are merged into the response of
# its handler; Produce, whose handler checks rights; and WriteTxnMarkers, which accepts two
# operations.
RIGHTS = {
    Operation.READ: {
        "AlterShareGroupOffsets",
        "ConsumerGroupHeartbeat",
        "DescribeProducers",
        "Heartbeat",
        "JoinGroup",
        "LeaveGroup",
        "OffsetCommit",
        "ShareGroupHeartbeat",
        "SyncGroup",
    },
    Operation.WRITE: {"AddOffsetsToTxn", "EndTxn", "InitProducerId", "TxnOffsetCommit"},
    Operation.CREATE: {"CreateTopics"},
    Operation.DELETE: {
        "DeleteGroups",
        "DeleteRecords",
        "DeleteShareGroupOffsets",
        "OffsetDelete",
    },
    Operation.ALTER: {
        "AddRaftVoter",
        "AlterPartitionReassignments",
        "AlterReplicaLogDirs",
        "AlterUserScramCredentials",
        "CreateAcls",
        "CreatePartitions",
        "DeleteAcls",
        "ElectLeaders",
        "RemoveRaftVoter",
        "UnregisterBroker",
        "UpdateFeatures",
    },
    Operation.DESCRIBE: {
        "ConsumerGroupDescribe",
        "DescribeAcls",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeQuorum",
        "DescribeTopicPartitions",
        "DescribeTransactions",
        "DescribeUserScramCredentials",
        "FindCoordinator",
        "ListOffsets",
        "ListPartitionReassignments",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
        "ShareGroupDescribe",
    },
    Operation.CLUSTER_ACTION: {"AddPartitionsToTxn"},
    Operation.DESCRIBE_CONFIGS: {"DescribeClientQuotas", "ListConfigResources"},
    Operation.ALTER_CONFIGS: {"AlterClientQuotas"},
}
NOT_IN_RIGHTS = WITHOUT_CODE | {
    "DeleteTopics",
    "DescribeShareGroupOffsets",
    "Produce",
    "WriteTxnMarkers",
}

# Operations that imply another operation.
IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}

TYPES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceType.TRANSACTIONAL_ID,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
}

# Fields that identify an element.
IDENTIFIERS = {"name", "topic", "topic_name", "group_id", "transactional_id", "user"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    opened = open_node(
        str(tmp_path), BrokerConfig.parse({"authorizer.class.name": STANDARD_AUTHORIZER})[0]
    )
    yield opened
    opened.close()


def refusal(
    node: Node, row: Row, version: int, message: "DataclassInstance"
) -> "DataclassInstance | None":
    """Return the response with all refusals of a guard; None if the guard refuses nothing."""
    guard, api = guard_of(row.key), BY_KEY[row.key]
    assert guard is not None
    context = RequestContext(node, api, version, "c", ClientInfo(1, "here"))
    allowed, denied = guard(Access(context), message)
    if denied is None:
        return None
    response = denied.add_to(None if allowed is None else api.response())
    assert not isinstance(response, Reply)
    write_response(ReceivedRequest(api, version, 1, "c", message), response)
    return response


def values(message: object, names: set[str]) -> Iterator[object]:
    """Yield all values of fields with these names, including nested elements."""
    if isinstance(message, list):
        for each in message:
            yield from values(each, names)
    elif is_dataclass(message):
        for field in fields(message):
            value = getattr(message, field.name)
            if field.name in names:
                yield value
            yield from values(value, names)


def sent_codes(message: object, version: int) -> Iterator[object]:
    """Yield all error codes that a response has in this version."""
    if isinstance(message, list):
        for each in message:
            yield from sent_codes(each, version)
    elif is_dataclass(message) and not isinstance(message, type):
        for field in fields_of(type(message), version):
            if not field.is_there:
                continue
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                yield value
            yield from sent_codes(value, version)


GUARDED = [row for row in ROWS if guard_of(row.key) is not None]


@pytest.mark.parametrize("row", GUARDED, ids=[BY_KEY[row.key].name for row in GUARDED])
def test_every_request_is_refused_in_a_form_that_can_be_sent(node: Node, row: Row) -> None:
    for version in range(row.api.first, row.api.last + 1):
        for message in samples(BY_KEY[row.key].request, version):
            with suppress(NotLoggedIn, UnansweredRequest):  # the connection is closed instead
                refusal(node, row, version, message)


@pytest.mark.parametrize("row", GUARDED, ids=[BY_KEY[row.key].name for row in GUARDED])
def test_refusals_have_the_names_of_the_request(node: Node, row: Row) -> None:
    """A refusal has error codes of its API, and each name in it is also in the request."""
    api = BY_KEY[row.key]
    if api.name in WITHOUT_CODE:
        return
    message = Sampler(api.last, 7, Fill.FULL).message(api.request)
    named = set(values(message, IDENTIFIERS))
    for field in fields_of(api.request, api.last):
        listed = getattr(message, field.name)
        if field.kind.item is not None and field.kind.item.struct is None and listed:
            named |= set(listed)
    try:
        response = refusal(node, row, api.last, message)
    except NotLoggedIn:
        return
    if response is None:
        return
    codes = set(values(response, {"error_code"}))
    expected = [code for code, names in CODES.items() if api.name in names]
    assert codes & DENIED_TEXT.keys() == set(expected or [ErrorCode.CLUSTER_AUTHORIZATION_FAILED])
    assert codes <= DENIED_TEXT.keys() | {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}
    assert set(values(response, IDENTIFIERS)) <= named | {""}


@pytest.mark.parametrize("row", GUARDED, ids=[BY_KEY[row.key].name for row in GUARDED])
def test_a_refusal_has_an_error_code_in_every_version(node: Node, row: Row) -> None:
    """In old versions, whose responses have no common error code, each element has the code."""
    api = BY_KEY[row.key]
    if api.name in WITHOUT_CODE:
        return
    first = max(row.api.first, FIRST_WITH_CODE.get(api.name, 0))
    for version in range(first, row.api.last + 1):
        message = Sampler(version, 7, Fill.FULL).message(api.request)
        try:
            response = refusal(node, row, version, message)
        except NotLoggedIn:
            continue
        if response is None:
            continue
        assert set(sent_codes(response, version)) & DENIED_TEXT.keys(), version


def code_of(name: str) -> ErrorCode:
    """Return the error code of an API if a right is missing."""
    codes = [code for code, names in CODES.items() if name in names]
    return codes[0] if codes else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def allowed(kind: ResourceType, operation: Operation) -> Acl:
    return Acl(
        resource_type=kind,
        name=WILDCARD,
        pattern=PatternType.LITERAL,
        principal=ALL_USERS,
        host=WILDCARD,
        operation=operation,
        permission=Permission.ALLOW,
    )


def test_the_table_of_rights_is_complete() -> None:
    listed = [name for names in RIGHTS.values() for name in names]
    assert sorted([*listed, *NOT_IN_RIGHTS]) == sorted(BY_KEY[row.key].name for row in GUARDED)


@pytest.mark.parametrize(
    ("operation", "name"),
    [(operation, name) for operation, names in RIGHTS.items() for name in sorted(names)],
)
def test_one_operation_and_those_that_imply_it_are_sufficient(
    node: Node, operation: Operation, name: str
) -> None:
    (row,) = (each for each in GUARDED if BY_KEY[each.key].name == name)
    code, api = code_of(name), BY_KEY[row.key]
    others = [
        allowed(kind, Operation.ALL)
        for other, kind in TYPES.items()
        if other not in {code, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    ]
    sufficient = set()
    for granted in Operation:
        if granted <= Operation.ALL:
            continue
        node.authorizer = Authorizer([allowed(TYPES[code], granted), *others])
        message = Sampler(api.last, 7, Fill.FULL).message(api.request)
        response = refusal(node, row, api.last, message)
        if response is None or code not in set(values(response, {"error_code"})):
            sufficient.add(granted)
    assert sufficient == {operation} | IMPLIED_BY.get(operation, set())
