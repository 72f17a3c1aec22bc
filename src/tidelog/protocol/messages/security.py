"""ACLs, SCRAM credentials, and SASL: DescribeAcls, AlterUserScramCredentials, SaslAuthenticate, ...

Source: Kafka's protocol guide, APIs 17, 29, 30, 31, 36, 50 and 51; KIP-43, KIP-140, KIP-152,
KIP-290 (name patterns), KIP-368 (session lifetime), KIP-554.
"""

from tidelog.protocol.messages.shared import (
    ErrorResponse,
    ErrorResult,
    ThrottledResponse,
    TopicName,
)
from tidelog.protocol.schema import INT8, INT16, INT32, INT64, message, wire
from tidelog.types import Buffer


@message
class DeleteAclsFilter:
    """Filter for ACLs. A null name, principal or host in a filter matches any value."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire()
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire()
    host_filter: str | None = wire()
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class DescribeAclsRequest(DeleteAclsFilter):
    """Request for the ACLs that match a filter."""


@message
class AclDescription:
    """ACL: principal, host, operation and permission."""

    principal: str = wire()
    host: str = wire()
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class DescribeAclsResource:
    """Resource in the response, with its ACLs."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    pattern_type: int = wire(INT8, default=3)
    acls: list[AclDescription] = wire()


@message
class DescribeAclsResponse(ErrorResponse):
    """Response with the matching ACLs, by resource."""

    resources: list[DescribeAclsResource] = wire()


@message
class AclCreation:
    """ACL to create, with its resource."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    resource_pattern_type: int = wire(INT8, default=3)
    principal: str = wire()
    host: str = wire()
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class CreateAclsRequest:
    """Request to create ACLs."""

    creations: list[AclCreation] = wire()


@message
class AclCreationResult(ErrorResult):
    """Result for one ACL."""


@message
class CreateAclsResponse(ThrottledResponse):
    """Response with a result for each ACL, in the order of the request."""

    results: list[AclCreationResult] = wire()


@message
class DeleteAclsRequest:
    """Request to delete the ACLs that match filters."""

    filters: list[DeleteAclsFilter] = wire()


@message
class DeleteAclsMatchingAcl(ErrorResult):
    """ACL that matched the filter; `error_code` is 0 if the ACL was deleted."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    pattern_type: int = wire(INT8, default=3)
    principal: str = wire()
    host: str = wire()
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class DeleteAclsFilterResult(ErrorResult):
    """Result for one filter, with the ACLs that matched."""

    matching_acls: list[DeleteAclsMatchingAcl] = wire()


@message
class DeleteAclsResponse(ThrottledResponse):
    """Response with a result for each filter, in the order of the request."""

    filter_results: list[DeleteAclsFilterResult] = wire()


@message
class DescribeUserScramCredentialsRequest:
    """Request for the SCRAM credentials of users; null or an empty list means all users."""

    users: list[TopicName] | None = wire()


@message
class CredentialInfo:
    """Public attributes of a credential: mechanism and number of iterations."""

    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@message
class DescribeUserScramCredentialsResult:
    """User in the response, with the user's credentials."""

    user: str = wire()
    error_code: int = wire(INT16)
    error_message: str | None = wire()
    credential_infos: list[CredentialInfo] = wire()


@message
class DescribeUserScramCredentialsResponse(ErrorResponse):
    """Response with the SCRAM credentials of each user."""

    results: list[DescribeUserScramCredentialsResult] = wire()


@message
class ScramCredentialDeletion:
    """Credential to delete."""

    name: str = wire()
    mechanism: int = wire(INT8)


@message
class ScramCredentialUpsertion:
    """Credential to create or replace.

    Anyone with the salted password can log in, so `repr` shows no fields.
    """

    __repr__ = object.__repr__  # contains a secret

    name: str = wire()
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: Buffer = wire()
    salted_password: Buffer = wire()


@message
class AlterUserScramCredentialsRequest:
    """Request to delete, create and replace SCRAM credentials."""

    __repr__ = object.__repr__  # contains a secret

    deletions: list[ScramCredentialDeletion] = wire()
    upsertions: list[ScramCredentialUpsertion] = wire()


@message
class AlterUserScramCredentialsResult:
    """Result for one user."""

    user: str = wire()
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class AlterUserScramCredentialsResponse(ThrottledResponse):
    """Response with a result for each user."""

    results: list[AlterUserScramCredentialsResult] = wire()


@message
class SaslHandshakeRequest:
    """Request to use a SASL mechanism."""

    mechanism: str = wire()


@message
class SaslHandshakeResponse:
    """Response with the supported mechanisms, and an error if the requested one is unsupported."""

    error_code: int = wire(INT16)
    mechanisms: list[str] = wire()


@message
class SaslAuthenticateRequest:
    """Client's message in a SASL exchange. It may contain a password, so `repr` hides it."""

    __repr__ = object.__repr__  # may contain a secret

    auth_bytes: Buffer = wire()


@message
class SaslAuthenticateResponse(ErrorResult):
    """Broker's message in a SASL exchange."""

    __repr__ = object.__repr__  # may contain a secret

    auth_bytes: Buffer = wire()
    session_lifetime_ms: int = wire(INT64, since=1)
