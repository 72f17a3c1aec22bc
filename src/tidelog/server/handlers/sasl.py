"""SaslHandshake and SaslAuthenticate where nobody has to log in; where one has to, `gate` answers.

Source: Kafka 4.3's KafkaApis.handleSaslHandshakeRequest and handleSaslAuthenticateRequest.
"""

from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidelog.server.requests import RequestContext

_TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(
    context: RequestContext,  # noqa: ARG001 - every handler has one
    request: SaslHandshakeRequest,  # noqa: ARG001 - whatever is asked
) -> SaslHandshakeResponse:
    """There is nothing to log in to."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(
    context: RequestContext,  # noqa: ARG001 - every handler has one
    request: SaslAuthenticateRequest,  # noqa: ARG001 - whatever is asked
) -> SaslAuthenticateResponse:
    """There is nothing to log in to."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_TOO_LATE
    )
