"""DescribeUserScramCredentials and AlterUserScramCredentials: users and their passwords' keys.

Source: Kafka's protocol guide, APIs 50 and 51; KIP-554.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    STRING,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class UserName:
    """A user that is asked about."""

    name: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest:
    """Which credentials have these users? All, where null or empty."""

    users: list[UserName] | None = wire(nullable_array(struct(UserName)))


@dataclass(slots=True, kw_only=True)
class CredentialInfo:
    """What may be told of a credential."""

    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResult:
    """One user's credentials."""

    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    credential_infos: list[CredentialInfo] = wire(array(struct(CredentialInfo)))


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    """Users with credentials."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    results: list[DescribeUserScramCredentialsResult] = wire(
        array(struct(DescribeUserScramCredentialsResult))
    )


@dataclass(slots=True, kw_only=True)
class ScramCredentialDeletion:
    """A credential to forget."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@dataclass(slots=True, kw_only=True, repr=False)
class ScramCredentialUpsertion:
    """A credential to keep. Whoever has the salted password can log in: nobody prints it."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: Buffer = wire(BYTES)
    salted_password: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, repr=False)
class AlterUserScramCredentialsRequest:
    """Credentials that go and come."""

    deletions: list[ScramCredentialDeletion] = wire(array(struct(ScramCredentialDeletion)))
    upsertions: list[ScramCredentialUpsertion] = wire(array(struct(ScramCredentialUpsertion)))


@dataclass(slots=True, kw_only=True)
class AlterUserScramCredentialsResult:
    """Whether one user's credentials were changed."""

    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class AlterUserScramCredentialsResponse:
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    results: list[AlterUserScramCredentialsResult] = wire(
        array(struct(AlterUserScramCredentialsResult))
    )
