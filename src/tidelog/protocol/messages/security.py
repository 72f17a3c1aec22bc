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
from tidelog.protocol.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    array,
    message,
    nullable_array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@message
class DeleteAclsFilter:
    """Filter for ACLs. A null name, principal or host in a filter matches any value."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(nullable_string())
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(nullable_string())
    host_filter: str | None = wire(nullable_string())
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class DescribeAclsRequest(DeleteAclsFilter):
    """Request for the ACLs that match a filter."""


@message
class AclDescription:
    """ACL: principal, host, operation and permission."""

    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class DescribeAclsResource:
    """Resource in the response, with its ACLs."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    acls: list[AclDescription] = wire(array(struct(AclDescription)))


@message
class DescribeAclsResponse(ErrorResponse):
    """Response with the matching ACLs, by resource."""

    resources: list[DescribeAclsResource] = wire(array(struct(DescribeAclsResource)))


@message
class AclCreation:
    """ACL to create, with its resource."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class CreateAclsRequest:
    """Request to create ACLs."""

    creations: list[AclCreation] = wire(array(struct(AclCreation)))


@message
class AclCreationResult(ErrorResult):
    """Result for one ACL."""


@message
class CreateAclsResponse(ThrottledResponse):
    """Response with a result for each ACL, in the order of the request."""

    results: list[AclCreationResult] = wire(array(struct(AclCreationResult)))


@message
class DeleteAclsRequest:
    """Request to delete the ACLs that match filters."""

    filters: list[DeleteAclsFilter] = wire(array(struct(DeleteAclsFilter)))


@message
class DeleteAclsMatchingAcl(ErrorResult):
    """ACL that matched the filter; `error_code` is 0 if the ACL was deleted."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class DeleteAclsFilterResult(ErrorResult):
    """Result for one filter, with the ACLs that matched."""

    matching_acls: list[DeleteAclsMatchingAcl] = wire(array(struct(DeleteAclsMatchingAcl)))


@message
class DeleteAclsResponse(ThrottledResponse):
    """Response with a result for each filter, in the order of the request."""

    filter_results: list[DeleteAclsFilterResult] = wire(array(struct(DeleteAclsFilterResult)))


@message
class DescribeUserScramCredentialsRequest:
    """Request for the SCRAM credentials of users; null or an empty list means all users."""

    users: list[TopicName] | None = wire(nullable_array(struct(TopicName)))


@message
class CredentialInfo:
    """Public attributes of a credential: mechanism and number of iterations."""

    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@message
class DescribeUserScramCredentialsResult:
    """User in the response, with the user's credentials."""

    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    credential_infos: list[CredentialInfo] = wire(array(struct(CredentialInfo)))


@message
class DescribeUserScramCredentialsResponse(ErrorResponse):
    """Response with the SCRAM credentials of each user."""

    results: list[DescribeUserScramCredentialsResult] = wire(
        array(struct(DescribeUserScramCredentialsResult))
    )


@message
class ScramCredentialDeletion:
    """Credential to delete."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@message
class ScramCredentialUpsertion:
    """Credential to create or replace.

    Anyone with the salted password can log in, so `repr` shows no fields.
    """

    __repr__ = object.__repr__  # contains a secret

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: Buffer = wire(BYTES)
    salted_password: Buffer = wire(BYTES)


@message
class AlterUserScramCredentialsRequest:
    """Request to delete, create and replace SCRAM credentials."""

    __repr__ = object.__repr__  # contains a secret

    deletions: list[ScramCredentialDeletion] = wire(array(struct(ScramCredentialDeletion)))
    upsertions: list[ScramCredentialUpsertion] = wire(array(struct(ScramCredentialUpsertion)))


@message
class AlterUserScramCredentialsResult:
    """Result for one user."""

    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class AlterUserScramCredentialsResponse(ThrottledResponse):
    """Response with a result for each user."""

    results: list[AlterUserScramCredentialsResult] = wire(
        array(struct(AlterUserScramCredentialsResult))
    )


@message
class SaslHandshakeRequest:
    """Request to use a SASL mechanism."""

    mechanism: str = wire(STRING)


@message
class SaslHandshakeResponse:
    """Response with the supported mechanisms, and an error if the requested one is unsupported."""

    error_code: int = wire(INT16)
    mechanisms: list[str] = wire(array(STRING))


@message
class SaslAuthenticateRequest:
    """Client's message in a SASL exchange. It may contain a password, so `repr` hides it."""

    __repr__ = object.__repr__  # may contain a secret

    auth_bytes: Buffer = wire(BYTES)


@message
class SaslAuthenticateResponse(ErrorResult):
    """Broker's message in a SASL exchange."""

    __repr__ = object.__repr__  # may contain a secret

    auth_bytes: Buffer = wire(BYTES)
    session_lifetime_ms: int = wire(INT64, since=1)
