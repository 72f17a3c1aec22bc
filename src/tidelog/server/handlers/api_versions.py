"""ApiVersions: what the broker speaks.

Source: KIP-511, KIP-584 (features), KIP-890, KIP-1022 (features that begin at 0).
"""

from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
)
from tidelog.server.handlers import ROWS
from tidelog.server.requests import RequestContext

# What clients and tools read as "a broker of Kafka 4.3"; the level of its metadata.
METADATA_VERSION_LEVEL: Final = 30
METADATA_VERSION_FIRST: Final = 7
# With version 2 a client adds partitions by producing, and each transaction has its own epoch.
TRANSACTION_VERSION: Final = 2
# Names with the lowest and the highest level; the highest is in force. The level 1 of groups is
# the consumer protocol, the level 1 of shares share groups.
FEATURES: Final = (
    ("group.version", 0, 1),
    ("metadata.version", METADATA_VERSION_FIRST, METADATA_VERSION_LEVEL),
    ("share.version", 0, 1),
    ("transaction.version", 0, TRANSACTION_VERSION),
)
# Clients of Kafka 3.3 to 3.7 give up on a feature that begins at 0, and ask below this version.
FEATURES_FROM_ZERO_SINCE: Final = 4
# Kafka's own rule for what software calls itself.
_NAME_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
)


def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """All that is announced, and the client's name for logs and metrics."""
    if context.version >= 3:
        software = request.client_software_name, request.client_software_version
        if not all(_is_name(text) for text in software):
            return answer(legacy=False, error_code=ErrorCode.INVALID_REQUEST)
        context.connection.software = software
    return answer(legacy=context.node.config.tidelog_legacy_clients, version=context.version)


def answer(*, legacy: bool, error_code: int = 0, version: int = 0) -> ApiVersionsResponse:
    """The answer in `version`; with an error it has no APIs but, with 35, itself, to ask again."""
    keys = [
        ApiVersion(
            api_key=row.key,
            min_version=row.announced_first_for(legacy=legacy),
            max_version=row.last,
        )
        for row in ROWS
    ]
    if error_code:
        itself = [key for key in keys if key.api_key == API_VERSIONS.key]
        return ApiVersionsResponse(
            error_code=error_code,
            api_keys=itself if error_code != ErrorCode.INVALID_REQUEST else [],
        )
    return ApiVersionsResponse(
        error_code=0,
        api_keys=keys,
        supported_features=[
            SupportedFeature(name=name, min_version=first, max_version=last)
            for name, first, last in FEATURES
            if first > 0 or version >= FEATURES_FROM_ZERO_SINCE
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeature(name=name, max_version_level=last, min_version_level=last)
            for name, _, last in FEATURES
        ],
    )


def _is_name(text: str) -> bool:
    """Letters, digits, dashes and dots, with a letter or digit at both ends."""
    return bool(text) and set(text) <= _NAME_CHARACTERS and text[0].isalnum() and text[-1].isalnum()
