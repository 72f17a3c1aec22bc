"""Refusals of brokers, as typed errors that name topic and partition.

Source: Kafka's protocol guide, error codes; librdkafka, rdkafka.h, rd_kafka_resp_err_t.
"""

from typing import TYPE_CHECKING, Final

from tidelog.cluster.client import Client
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    NotAuthorized,
    PolicyViolation,
    RecordListTooLarge,
    TidelogError,
    UnknownTopic,
    WriterFenced,
)

if TYPE_CHECKING:
    import confluent_kafka as ck

UNKNOWN_PARTITION: Final = -190
UNKNOWN_TOPIC: Final = -188
FENCED: Final = -144
PURGED: Final = frozenset({-152, -151})

_FENCED: Final = frozenset({FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_NOT_AUTHORIZED: Final = frozenset(
    {
        -169,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
_REFUSED: Final[dict[int, type[TidelogError]]] = {
    ErrorCode.MESSAGE_TOO_LARGE: MessageTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordListTooLarge,
    ErrorCode.INVALID_TIMESTAMP: InvalidTimestamp,
    ErrorCode.POLICY_VIOLATION: PolicyViolation,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    UNKNOWN_TOPIC: UnknownTopic,
    UNKNOWN_PARTITION: InvalidRequest,
}
# What to do about it, where the broker's own words don't say.
_ADVICE: Final[dict[int, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: "; raise the topic's max.message.bytes, and for a single large"
    " record the producer's message.max.bytes (in Spark the option kafka.max.request.size)",
    ErrorCode.INVALID_TIMESTAMP: "; the topic's message.timestamp.before.max.ms and"
    " message.timestamp.after.max.ms say which times it takes",
    ErrorCode.POLICY_VIOLATION: "; a tidelog broker refuses so while its clock can't be believed:"
    " its log says why, and `tidelog accept-clock --data DIR` on its machine lets appends go on",
    ErrorCode.INVALID_RECORD: "; a compacted topic takes no record without a key",
    ErrorCode.PRODUCER_FENCED: "; another attempt of the same writer writes in its place",
}


def typed_error(
    client: Client, operation: str, error: "ck.KafkaError", *, where: str = ""
) -> TidelogError:
    """The error to raise for one of the client library's.

    Args:
        client: The cluster it is about.
        operation: What was tried, as a verb.
        error: What the library said.
        where: Topic and partition, empty where it is about no single one.
    """
    code = error.code()
    place = f"{where}: " if where else ""
    reason = f"{place}{error.name()}: {error.str()}{_ADVICE.get(code, '')}"
    if code in _REFUSED:
        return _REFUSED[code](reason)
    if code in _FENCED:
        return WriterFenced(client.bootstrap, operation, reason, error_code=code)
    if code in _NOT_AUTHORIZED:
        return NotAuthorized(client.bootstrap, operation, reason, error_code=code)
    known = client.failure(operation, error)
    return ClusterFailure(client.bootstrap, operation, place + known.reason, error_code=code)
