"""DescribeAcls, CreateAcls, DeleteAcls: there is no authorizer, as in a Kafka that has none set.

Source: Kafka's protocol guide, APIs 29, 30 and 31; KIP-140.
"""

from typing import Final

from tidelog.protocol.messages.acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from tidelog.server.requests import RequestContext

SECURITY_DISABLED: Final = 54
_NONE: Final = "No Authorizer is configured."


def describe_acls(
    context: RequestContext,  # noqa: ARG001 - every handler has one
    request: DescribeAclsRequest,  # noqa: ARG001 - whatever is asked
) -> DescribeAclsResponse:
    """There are none."""
    return DescribeAclsResponse(
        error_code=SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )


def create_acls(
    context: RequestContext,  # noqa: ARG001 - every handler has one
    request: CreateAclsRequest,
) -> CreateAclsResponse:
    """None can be made."""
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=SECURITY_DISABLED, error_message=_NONE)
            for _ in request.creations
        ]
    )


def delete_acls(
    context: RequestContext,  # noqa: ARG001 - every handler has one
    request: DeleteAclsRequest,
) -> DeleteAclsResponse:
    """None can go."""
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=SECURITY_DISABLED, error_message=_NONE)
            for _ in request.filters
        ]
    )
