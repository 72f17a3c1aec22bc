"""Kafka's messages, declared from the public protocol; `BY_KEY` finds an API by its number.

A new API is one declaration of its request and response in a module here, an `Api` for both, and a
line in `BY_KEY`; tests compare every declaration with Kafka's own, field by field.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.protocol.messages.common import Api
from tidelog.protocol.messages.configs import DESCRIBE_CONFIGS
from tidelog.protocol.messages.fetch import FETCH
from tidelog.protocol.messages.groups import FIND_COORDINATOR, LIST_GROUPS, OFFSET_FETCH
from tidelog.protocol.messages.metadata import API_VERSIONS, METADATA
from tidelog.protocol.messages.offsets import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AnyApi: TypeAlias = "Api[DataclassInstance, DataclassInstance]"


def _by_key(*apis: AnyApi) -> Mapping[int, AnyApi]:
    return {api.key: api for api in apis}


BY_KEY: Final = _by_key(
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)

__all__ = [
    "API_VERSIONS",
    "BY_KEY",
    "DESCRIBE_CONFIGS",
    "FETCH",
    "FIND_COORDINATOR",
    "LIST_GROUPS",
    "LIST_OFFSETS",
    "METADATA",
    "OFFSET_FETCH",
    "OFFSET_FOR_LEADER_EPOCH",
    "AnyApi",
    "Api",
]
