"""Fields of Produce 0 to 2, Fetch 0 to 3 and ListOffsets 0, which Kafka 4 has removed.

Source: Kafka's protocol guide of 3.9. The fields have the names that kio would give them.
"""

from typing import Final

from tests.corpus.exchanges.values import Field

_PRODUCE, _FETCH, _LIST_OFFSETS = 0, 1, 2


def _plain(kind: str, name: str, default: int | str = 0) -> Field:
    return Field(name=name, kind=kind, default="" if kind == "string" else default)


def _array(name: str, *fields: Field) -> Field:
    return Field(name=name, kind="struct", is_array=True, fields=fields, default=[])


def _int16(name: str) -> Field:
    return _plain("int16", name)


def _int32(name: str, default: int = 0) -> Field:
    return _plain("int32", name, default)


def _int64(name: str) -> Field:
    return _plain("int64", name)


_RECORDS: Final = Field(name="records", kind="bytes", default=None)
_THROTTLE: Final = _int32("throttle_time")


def _produce_response(version: int) -> tuple[Field, ...]:
    times = (_int64("log_append_time"),) if version >= 2 else ()
    parts = _array(
        "partition_responses", _int32("index"), _int16("error_code"), _int64("base_offset"), *times
    )
    responses = _array("responses", _plain("string", "name"), parts)
    return (responses, _THROTTLE) if version >= 1 else (responses,)


def _fetch_request(version: int) -> tuple[Field, ...]:
    largest = (_int32("max_bytes", 2**31 - 1),) if version >= 3 else ()
    parts = _array(
        "partitions", _int32("partition"), _int64("fetch_offset"), _int32("partition_max_bytes")
    )
    topics = _array("topics", _plain("string", "topic"), parts)
    return (_int32("replica_id", -1), _int32("max_wait"), _int32("min_bytes"), *largest, topics)


def _fetch_response(version: int) -> tuple[Field, ...]:
    parts = _array(
        "partitions",
        _int32("partition_index"),
        _int16("error_code"),
        _int64("high_watermark"),
        _RECORDS,
    )
    responses = _array("responses", _plain("string", "topic"), parts)
    return (_THROTTLE, responses) if version >= 1 else (responses,)


_PRODUCE_REQUEST: Final = (
    _int16("acks"),
    _int32("timeout"),
    _array(
        "topic_data",
        _plain("string", "name"),
        _array("partition_data", _int32("index"), _RECORDS),
    ),
)
_LIST_OFFSETS_REQUEST: Final = (
    _int32("replica_id", -1),
    _array(
        "topics",
        _plain("string", "name"),
        _array(
            "partitions",
            _int32("partition_index"),
            _int64("timestamp"),
            _int32("max_num_offsets", 1),
        ),
    ),
)
_LIST_OFFSETS_RESPONSE: Final = (
    _array(
        "topics",
        _plain("string", "name"),
        _array(
            "partitions",
            _int32("partition_index"),
            _int16("error_code"),
            Field(name="old_style_offsets", kind="int64", is_array=True, default=[]),
        ),
    ),
)
OLD: Final = {
    **{(_PRODUCE, version, "request"): _PRODUCE_REQUEST for version in range(3)},
    **{(_PRODUCE, version, "response"): _produce_response(version) for version in range(3)},
    **{(_FETCH, version, "request"): _fetch_request(version) for version in range(4)},
    **{(_FETCH, version, "response"): _fetch_response(version) for version in range(4)},
    (_LIST_OFFSETS, 0, "request"): _LIST_OFFSETS_REQUEST,
    (_LIST_OFFSETS, 0, "response"): _LIST_OFFSETS_RESPONSE,
}
