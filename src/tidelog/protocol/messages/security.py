"""ACLs, SCRAM credentials, and SASL: DescribeAcls, AlterUserScramCredentials, SaslAuthenticate, ...

Source: Kafka's protocol guide, APIs 17, 29, 30, 31, 36, 50 and 51; KIP-43, KIP-140, KIP-152,
KIP-290 (name patterns), KIP-368 (session lifetime), KIP-554.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Declaration,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeAclsRequest(Declaration):
    """Which rules pass this filter? Null lets every name pass."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(nullable_string())
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(nullable_string())
    host_filter: str | None = wire(nullable_string())
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AclDescription(Declaration):
    """A rule."""

    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeAclsResource(Declaration):
    """What rules are about."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    acls: list[AclDescription] = wire(array(struct(AclDescription)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeAclsResponse(Declaration):
    """The rules."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resources: list[DescribeAclsResource] = wire(array(struct(DescribeAclsResource)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AclCreation(Declaration):
    """A rule and what it is about."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreateAclsRequest(Declaration):
    """New rules."""

    creations: list[AclCreation] = wire(array(struct(AclCreation)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AclCreationResult(Declaration):
    """Whether a rule was created."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreateAclsResponse(Declaration):
    """What was created, in the order asked."""

    throttle_time_ms: int = wire(INT32)
    results: list[AclCreationResult] = wire(array(struct(AclCreationResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteAclsFilter(Declaration):
    """A filter; null lets every name pass."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(nullable_string())
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(nullable_string())
    host_filter: str | None = wire(nullable_string())
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteAclsRequest(Declaration):
    """Delete the rules that pass these filters."""

    filters: list[DeleteAclsFilter] = wire(array(struct(DeleteAclsFilter)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteAclsMatchingAcl(Declaration):
    """A rule that was deleted, or why it was not."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteAclsFilterResult(Declaration):
    """What passed one filter."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    matching_acls: list[DeleteAclsMatchingAcl] = wire(array(struct(DeleteAclsMatchingAcl)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteAclsResponse(Declaration):
    """What was deleted, in the order of the filters."""

    throttle_time_ms: int = wire(INT32)
    filter_results: list[DeleteAclsFilterResult] = wire(array(struct(DeleteAclsFilterResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UserName(Declaration):
    """A user that is asked about."""

    name: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeUserScramCredentialsRequest(Declaration):
    """Which credentials have these users? All, where null or empty."""

    users: list[UserName] | None = wire(nullable_array(struct(UserName)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CredentialInfo(Declaration):
    """What may be told of a credential."""

    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeUserScramCredentialsResult(Declaration):
    """One user's credentials."""

    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    credential_infos: list[CredentialInfo] = wire(array(struct(CredentialInfo)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeUserScramCredentialsResponse(Declaration):
    """Users with credentials."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    results: list[DescribeUserScramCredentialsResult] = wire(
        array(struct(DescribeUserScramCredentialsResult))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ScramCredentialDeletion(Declaration):
    """A credential to forget."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ScramCredentialUpsertion(Declaration):
    """A credential to keep. Whoever has the salted password can log in: nobody prints it."""

    __repr__ = object.__repr__  # a secret is in it

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: Buffer = wire(BYTES)
    salted_password: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterUserScramCredentialsRequest(Declaration):
    """Credentials that go and come."""

    __repr__ = object.__repr__  # a secret is in it

    deletions: list[ScramCredentialDeletion] = wire(array(struct(ScramCredentialDeletion)))
    upsertions: list[ScramCredentialUpsertion] = wire(array(struct(ScramCredentialUpsertion)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterUserScramCredentialsResult(Declaration):
    """Whether one user's credentials were changed."""

    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterUserScramCredentialsResponse(Declaration):
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    results: list[AlterUserScramCredentialsResult] = wire(
        array(struct(AlterUserScramCredentialsResult))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SaslHandshakeRequest(Declaration):
    """Which mechanism the client wants."""

    mechanism: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SaslHandshakeResponse(Declaration):
    """Response with the supported mechanisms; an error if the requested one is missing."""

    error_code: int = wire(INT16)
    mechanisms: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SaslAuthenticateRequest(Declaration):
    """The client's next word. It may be a password: nobody prints it."""

    __repr__ = object.__repr__  # a secret is in it

    auth_bytes: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SaslAuthenticateResponse(Declaration):
    """The broker's."""

    __repr__ = object.__repr__  # a secret is in it

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    auth_bytes: Buffer = wire(BYTES)
    session_lifetime_ms: int = wire(INT64, since=1)
