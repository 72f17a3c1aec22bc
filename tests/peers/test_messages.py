"""Every declared message, in every version, compared with Apache Kafka's own classes."""

import base64
import dataclasses
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.unit.protocol.test_messages import encode
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.messages import samples

from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.group_records import (
    ASSIGNMENT,
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    SUBSCRIPTION,
)
from tidelog.protocol.messages.modern_group_records import (
    CONSUMER_GROUP_VALUE,
    CONSUMER_MEMBER_VALUE,
    CURRENT_ASSIGNMENT_VALUE,
    GROUP_KEYS,
    MEMBER_KEYS,
    MEMBER_TARGET_VALUE,
    REGULAR_EXPRESSION_KEY,
    REGULAR_EXPRESSION_VALUE,
    SHARE_CURRENT_VALUE,
    SHARE_GROUP_VALUE,
    SHARE_MEMBER_VALUE,
    SHARE_STATE_PARTITIONS_VALUE,
    TARGET_VALUE,
)
from tidelog.protocol.messages.state_records import (
    SHARE_SNAPSHOT_VALUE,
    SHARE_STATE_KEY,
    SHARE_UPDATE_VALUE,
    TRANSACTION_LOG_KEY,
    TRANSACTION_LOG_VALUE,
)
from tidelog.protocol.wire import Reader
from tidelog.storage.files import encode_topic_id

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

pytestmark = pytest.mark.kafka
# Kafka's JSON converter omits the bytes of records, so the tests compare the bytes that Kafka's
# class encodes.
RECORDS = "records"


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def as_json(value: object) -> object:
    """Return a value in the form of Kafka's JSON converter."""
    if isinstance(value, UUID):
        return encode_topic_id(value)
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def fields_of(message: "DataclassInstance") -> dict[str, object]:
    return {
        camel(field.name): as_json(getattr(message, field.name))
        for field in dataclasses.fields(message)
    }


def compare(ours: object, theirs: object, where: str) -> None:
    """Compare every field of Kafka's form, which omits tagged fields with default values."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        for name, value in theirs.items():
            if name == RECORDS:
                continue
            assert name in ours, f"{where}: Kafka has {name}"
            compare(ours[name], value, f"{where}.{name}")
    elif isinstance(theirs, list):
        assert isinstance(ours, list), where
        assert len(ours) == len(theirs), where
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            compare(mine, other, f"{where}[{number}]")
    else:
        assert ours == theirs, where


def check(oracle: Oracle, name: str, version: int, written: bytes, message: object) -> None:
    """Assert that Kafka's class decodes our message to the last byte, and encodes equal bytes."""
    data = base64.b64encode(written).decode()
    answer = oracle.ask("message", name=name, version=version, data=data)
    assert isinstance(answer, dict)
    where = f"{name} v{version}"
    assert answer["left"] == 0, where
    compare(as_json(message), answer["fields"], where)
    assert base64.b64decode(str(answer["data"])) == written, where


def package_of(name: str) -> str:
    """Return the package of Kafka's class for a message inside other messages or inside records."""
    if "ConsumerProtocol" in name:
        return ""
    share = name.startswith(("ShareSnapshot", "ShareUpdate"))
    transaction = name.startswith("TransactionLog")
    coordinator = "transaction" if transaction else "share" if share else "group"
    return f"org.apache.kafka.coordinator.{coordinator}.generated."


@pytest.mark.parametrize("api", BY_KEY.values(), ids=lambda api: api.name)
def test_kafka_reads_the_same_fields_and_writes_the_same_bytes(
    kafka_oracle: Oracle, api: AnyApi
) -> None:
    for version in range(api.first, api.last + 1):
        for kind, suffix in ((api.request, "Request"), (api.response, "Response")):
            for message in samples(kind, version):
                written = encode(kind, version, message, flexible=api.is_flexible(version))
                check(kafka_oracle, f"{api.name}{suffix}", version, written, message)


RECORD_KINDS: list[tuple[str, object]] = [
    *(
        (data.kind.__name__, data)
        for data in (
            SUBSCRIPTION,
            ASSIGNMENT,
            OFFSET_COMMIT_KEY,
            OFFSET_COMMIT_VALUE,
            GROUP_METADATA_KEY,
            GROUP_METADATA_VALUE,
            CONSUMER_GROUP_VALUE,
            CONSUMER_MEMBER_VALUE,
            CURRENT_ASSIGNMENT_VALUE,
            REGULAR_EXPRESSION_KEY,
            REGULAR_EXPRESSION_VALUE,
            TRANSACTION_LOG_KEY,
            TRANSACTION_LOG_VALUE,
            SHARE_CURRENT_VALUE,
            SHARE_MEMBER_VALUE,
            SHARE_SNAPSHOT_VALUE,
            SHARE_STATE_PARTITIONS_VALUE,
            SHARE_UPDATE_VALUE,
        )
    ),
    ("ConsumerGroupMetadataKey", GROUP_KEYS[3]),
    ("ConsumerGroupPartitionMetadataKey", GROUP_KEYS[4]),
    ("ConsumerGroupMemberMetadataKey", MEMBER_KEYS[5]),
    ("ConsumerGroupTargetAssignmentMetadataKey", GROUP_KEYS[6]),
    ("ConsumerGroupTargetAssignmentMetadataValue", TARGET_VALUE),
    ("ConsumerGroupTargetAssignmentMemberKey", MEMBER_KEYS[7]),
    ("ConsumerGroupTargetAssignmentMemberValue", MEMBER_TARGET_VALUE),
    ("ConsumerGroupCurrentMemberAssignmentKey", MEMBER_KEYS[8]),
    ("ShareGroupCurrentMemberAssignmentKey", MEMBER_KEYS[14]),
    ("ShareGroupMetadataKey", GROUP_KEYS[11]),
    ("ShareGroupMetadataValue", SHARE_GROUP_VALUE),
    ("ShareGroupMemberMetadataKey", MEMBER_KEYS[10]),
    ("ShareGroupTargetAssignmentMemberKey", MEMBER_KEYS[13]),
    ("ShareGroupTargetAssignmentMemberValue", MEMBER_TARGET_VALUE),
    ("ShareGroupStatePartitionMetadataKey", GROUP_KEYS[15]),
    ("ShareGroupTargetAssignmentMetadataKey", GROUP_KEYS[12]),
    ("ShareGroupTargetAssignmentMetadataValue", TARGET_VALUE),
    ("ShareSnapshotKey", SHARE_STATE_KEY),
    ("ShareUpdateKey", SHARE_STATE_KEY),
]


@pytest.mark.parametrize(("name", "data"), RECORD_KINDS, ids=[name for name, _ in RECORD_KINDS])
def test_kafka_reads_the_values_of_coordinator_records(
    kafka_oracle: Oracle, name: str, data: DataMessage["DataclassInstance"]
) -> None:
    for version in range(data.first, data.last + 1):
        for message in samples(data.kind, version):
            written = data.write(version, message)
            assert data.read(written) == (version, message)
            # A record key has only version 0 in Kafka's class, whatever the value's version is.
            known = 0 if name.endswith("Key") else version
            check(kafka_oracle, package_of(name) + name, known, written[2:], message)


def test_kafka_announces_the_versions_that_we_declare(kafka_oracle: Oracle) -> None:
    announced = kafka_oracle.ask("versions")
    assert isinstance(announced, dict)
    for api in BY_KEY.values():
        assert announced[api.name] == [api.key, api.first, api.last], api.name


# Bytes that encode surrogates are excluded: Java decodes them to one replacement character, Python
# to three.
@pytest.mark.parametrize(
    "text",
    [
        "ff",
        "61ff62",
        "c3",
        "c328",
        "e28261",
        "f09f98",
        "f4908080",
        "c080",
        "fefeff",
        "80bf",
    ],
)
def test_kafka_replaces_invalid_utf_8_in_the_same_way(kafka_oracle: Oracle, text: str) -> None:
    data = bytes.fromhex(text)
    written = len(data).to_bytes(2, "big") + data
    answer = kafka_oracle.ask(
        "message",
        name="FindCoordinatorRequest",
        version=0,
        data=base64.b64encode(written).decode(),
    )
    assert isinstance(answer, dict)
    codec = struct_codec(FindCoordinatorRequest, 0, False)
    assert codec.read(Reader(written)).key == answer["fields"]["key"]
