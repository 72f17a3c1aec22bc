"""Every message that we declare, in every version, against Apache Kafka's own classes."""

import base64
import dataclasses
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.kafka_oracle import Oracle
from tests.unit.protocol.messages import messages
from tests.unit.protocol.test_messages import encode

from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.storage.files import encode_topic_id

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

pytestmark = pytest.mark.kafka
# Kafka's converter leaves their bytes out; the message that it writes again has them.
RECORDS = "records"


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def told(value: object) -> object:
    """A value as Kafka's JSON converter writes it."""
    if isinstance(value, UUID):
        return encode_topic_id(value)
    if isinstance(value, list):
        return [told(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def fields_of(message: "DataclassInstance") -> dict[str, object]:
    return {
        camel(field.name): told(getattr(message, field.name))
        for field in dataclasses.fields(message)
    }


def compare(ours: object, theirs: object, where: str) -> None:
    """Every field that Kafka tells is ours; it leaves out tagged ones that have their default."""
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


@pytest.mark.parametrize("api", BY_KEY.values(), ids=lambda api: api.name)
@settings(
    max_examples=3,
    deadline=None,
    # A message is small as it is drawn; to make it smaller would ask Kafka thousands of times.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_kafka_reads_the_same_fields_and_writes_the_same_bytes(
    kafka_oracle: Oracle, api: AnyApi, data: st.DataObject
) -> None:
    for version in range(api.first, api.last + 1):
        for kind, suffix in ((api.request, "Request"), (api.response, "Response")):
            message = data.draw(messages(kind, version))
            written = encode(api, version, message)
            answer = kafka_oracle.ask(
                "message",
                name=f"{api.name}{suffix}",
                version=version,
                data=base64.b64encode(written).decode(),
            )
            assert isinstance(answer, dict)
            where = f"{api.name}{suffix} v{version}"
            assert answer["left"] == 0, where
            compare(fields_of(message), answer["fields"], where)
            assert base64.b64decode(str(answer["data"])) == written, where
