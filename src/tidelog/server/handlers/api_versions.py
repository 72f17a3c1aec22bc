"""ApiVersions: what the broker speaks. Source: KIP-511, KIP-584 (features)."""

from typing import Final

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

INVALID_REQUEST: Final = 42
# What clients and tools read as "a broker of Kafka 4.3"; the level of its metadata.
METADATA_VERSION_LEVEL: Final = 30
METADATA_VERSION_FIRST: Final = 7
# Kafka's own rule for what software calls itself.
_NAME_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
)


def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """All that is announced, and the client's name for logs and metrics."""
    if context.version >= 3:
        software = request.client_software_name, request.client_software_version
        if not all(_is_name(text) for text in software):
            return answer(legacy=False, error_code=INVALID_REQUEST)
        context.connection.software = software
    return answer(legacy=context.node.config.tidelog_legacy_clients)


def answer(*, legacy: bool, error_code: int = 0) -> ApiVersionsResponse:
    """The answer; with an error it has no APIs but, with error 35, itself, to ask again."""
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
            error_code=error_code, api_keys=itself if error_code != INVALID_REQUEST else []
        )
    return ApiVersionsResponse(
        error_code=0,
        api_keys=keys,
        supported_features=[
            SupportedFeature(
                name="metadata.version",
                min_version=METADATA_VERSION_FIRST,
                max_version=METADATA_VERSION_LEVEL,
            )
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeature(
                name="metadata.version",
                max_version_level=METADATA_VERSION_LEVEL,
                min_version_level=METADATA_VERSION_LEVEL,
            )
        ],
    )


def _is_name(text: str) -> bool:
    """Letters, digits, dashes and dots, with a letter or digit at both ends."""
    return bool(text) and set(text) <= _NAME_CHARACTERS and text[0].isalnum() and text[-1].isalnum()
