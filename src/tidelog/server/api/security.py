"""Requests about ACLs and SCRAM users; SASL requests on a listener without authentication.

A broker without an authorizer answers ACL requests with SECURITY_DISABLED (54), as Kafka does. A
request about SCRAM users may name each user only once. If the change of one user is refused, the
changes of other users are still made. On listeners with SASL the connection's `SaslSession` answers
SaslHandshake and SaslAuthenticate.

Source: Kafka's protocol guide, APIs 17, 29, 30, 31, 36, 50 and 51; KIP-140, KIP-290, KIP-554; Kafka
4.3's AclApis, AclControlManager, ScramControlManager, ScramImage and KafkaApis.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    CredentialInfo,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.server.admin.security_store import ACLS_MAX, USERS_MAX
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many
from tidelog.server.api.guards import Access, Guarded, denied_whole
from tidelog.server.runtime.errors import Refusal, errors_in, refusal_of, set_error
from tidelog.server.runtime.loop import Slices
from tidelog.server.security.authorizer import IN_ORDER, Acl, AclFilter
from tidelog.server.security.operations import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tidelog.server.security.sasl import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
)
from tidelog.storage.directory.broker_files import ScramCredential

_NONE: Final = "No Authorizer is configured."


# -- describe ------------------------------------------------------------------------------------


async def describe_acls(
    context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | LargeResponse:
    """Describe the ACLs that match a filter, grouped by resource."""
    authorizer = context.node.authorizer
    if authorizer is None:
        text = "No Authorizer is configured on the broker"
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=text)
    acls, acl_filter = authorizer.acls, _filter_of(request)
    resources = await context.node.work.run_long(len(acls), _resources, acls, acl_filter)
    response = DescribeAclsResponse(error_message=None, resources=resources)
    return large_if_many(response, resources, len(acls))


def _resources(acls: Iterable[Acl], acl_filter: AclFilter | None) -> list[DescribeAclsResource]:
    """Return the ACLs that match a filter, grouped by resource. Any thread may call this."""
    by_resource: defaultdict[tuple[int, str, int], list[AclDescription]] = defaultdict(list)
    for acl in _passing(acls, acl_filter):
        by_resource[acl.resource_type, acl.name, acl.pattern].append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return [
        DescribeAclsResource(
            resource_type=kind, resource_name=name, pattern_type=pattern, acls=described
        )
        for (kind, name, pattern), described in by_resource.items()
    ]


def _filter_of(message: DeleteAclsFilter) -> AclFilter | None:
    """Return a request's ACL filter; None if it has an undefined code, so that no ACL can match.

    Raises:
        CorruptMessage: A code is 0 (UNKNOWN); Kafka can't read such a request.
    """
    _ensure_known(
        message.resource_type_filter,
        message.pattern_type_filter,
        message.operation,
        message.permission_type,
    )
    try:
        return AclFilter(
            resource_type=ResourceType(message.resource_type_filter),
            name=message.resource_name_filter,
            pattern=PatternType(message.pattern_type_filter),
            principal=message.principal_filter,
            host=message.host_filter,
            operation=Operation(message.operation),
            permission=Permission(message.permission_type),
        )
    except ValueError:
        return None


def _ensure_known(*numbers: int) -> None:
    """Ensure that no code is UNKNOWN (0).

    Raises:
        CorruptMessage: A code is UNKNOWN.
    """
    if 0 in numbers:
        raise CorruptMessage(
            "the resource type, pattern type, operation or permission of an ACL is 0 (UNKNOWN):"
            f" {numbers}"
        )


def _passing(acls: Iterable[Acl], acl_filter: AclFilter | None) -> list[Acl]:
    return [] if acl_filter is None else sorted(filter(acl_filter.passes, acls), key=IN_ORDER)


# -- change --------------------------------------------------------------------------------------


async def create_acls(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Add ACLs, and respond once the ACLs are durable. Adding an existing ACL is no error."""
    authorizer = context.node.authorizer
    if authorizer is None:
        disabled = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE)
        return CreateAclsResponse(results=[disabled for _ in request.creations])
    results: list[AclCreationResult] = []
    acls: list[tuple[Acl, AclCreationResult]] = []
    for creation in request.creations:
        result = AclCreationResult(error_message=None)
        try:
            acls.append((_acl_of(creation), result))
        except Refusal as refusal:  # other errors apply to the whole request
            set_error(result, refusal)
        results.append(result)
    try:
        refused = await context.node.rules.add_acls(acl for acl, _ in acls)
        failure = Refusal(ErrorCode.POLICY_VIOLATION, f"There are {ACLS_MAX} ACLs already")
    except TidelogError as error:
        refused, failure = frozenset(acl for acl, _ in acls), refusal_of(error)
    for acl, result in acls:
        if acl in refused:
            set_error(result, failure)
    return CreateAclsResponse(results=results)


def _acl_of(creation: AclCreation) -> Acl:
    """Return the ACL to add.

    Raises:
        Refusal: The ACL is invalid.
        CorruptMessage: A code is 0 (UNKNOWN).
    """
    _ensure_known(
        creation.resource_type,
        creation.resource_pattern_type,
        creation.operation,
        creation.permission_type,
    )
    try:
        acl = Acl(
            resource_type=ResourceType(creation.resource_type),
            name=creation.resource_name,
            pattern=PatternType(creation.resource_pattern_type),
            principal=creation.principal,
            host=creation.host,
            operation=Operation(creation.operation),
            permission=Permission(creation.permission_type),
        )
    except ValueError as error:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"ACL contains unknown elements: {error}"
        ) from error
    _ensure_concrete(acl)
    for is_wrong, text in (
        (not acl.name, "Resource name should not be empty"),
        (
            _is_other_cluster(acl),
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        ),
        (":" not in acl.principal, "Principal must be TYPE:NAME"),
    ):
        if is_wrong:
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
    return acl


def _ensure_concrete(acl: Acl) -> None:
    """Raise Refusal if an ACL has the value ANY or MATCH, which only filters may have."""
    for is_any, text in (
        (acl.resource_type is ResourceType.ANY, "resourceType must not be ANY"),
        (acl.pattern < PatternType.LITERAL, f"patternType must not be {acl.pattern.name}"),
        (acl.operation is Operation.ANY, "operation must not be ANY"),
        (acl.permission is Permission.ANY, "permissionType must not be ANY"),
    ):
        if is_any:
            # Kafka responds with UNKNOWN_SERVER_ERROR, too, because its code fails on an ACL with
            # such a value.
            raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, text)


def _is_other_cluster(acl: Acl) -> bool:
    return acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME


async def delete_acls(
    context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse | LargeResponse:
    """Delete the ACLs that match any filter. The response is sent once the deletion is durable."""
    authorizer = context.node.authorizer
    if authorizer is None:
        refused = DeleteAclsFilterResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE
        )
        return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
    results: list[DeleteAclsFilterResult] = []
    going: list[list[Acl]] = []
    for filter_request in request.filters:
        acl_filter = _filter_of(filter_request)
        if acl_filter is None:
            text = "Filter contains UNKNOWN elements"
            results.append(
                DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
            )
            continue
        acls = authorizer.acls
        matches, removed = await context.node.work.run_long(len(acls), _removed, acls, acl_filter)
        going.append(matches)
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=removed))
    try:
        await context.node.rules.remove_acls([*chain.from_iterable(going)])
    except TidelogError as error:
        for result in results:
            if result.error_code == ErrorCode.NONE:
                set_error(result, error)
                result.matching_acls = []
    response = DeleteAclsResponse(filter_results=results)
    return large_if_many(response, results, sum(map(len, going)))


def _removed(
    acls: Iterable[Acl], acl_filter: AclFilter
) -> tuple[list[Acl], list[DeleteAclsMatchingAcl]]:
    """Return the ACLs that match a filter, and the response's rows for them.

    Any thread may call this.
    """
    matches = _passing(acls, acl_filter)
    return matches, [_matching(acl) for acl in matches]


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


NAME_BYTES_MAX: Final = 1024

# Maximum length of a salt and of a salted password, in bytes. The maximum limits the time that the
# event loop needs to hash the salted password.
SALT_BYTES_MAX: Final = 1024

_TWICE: Final = "A user credential cannot be altered twice in the same request"
_Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion
_Credentials: TypeAlias = dict[tuple[str, int], ScramCredential]


async def describe_user_scram_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse | LargeResponse:
    """List the SCRAM mechanisms of the named users, or of all users if no user is named."""
    credentials = context.node.rules.credentials()
    names = [user.name for user in request.users or ()]
    count = len(names) or len(credentials)
    results = await context.node.work.run_long(count, _describe, credentials, names)
    return large_if_many(DescribeUserScramCredentialsResponse(results=results), results)


def _describe(
    credentials: Mapping[tuple[str, int], ScramCredential], names: Sequence[str]
) -> list[DescribeUserScramCredentialsResult]:
    """Describe the named users, or all users if no user is named. Any thread may call this."""
    users = names or sorted({user for user, _ in credentials})
    infos = {name: _infos(credentials, name) for name in users}
    times = Counter(users)
    return [_described(name, times[name], infos[name]) for name in infos]


def _infos(
    credentials: Mapping[tuple[str, int], ScramCredential], name: str
) -> list[CredentialInfo]:
    return [
        CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        for mechanism in sorted(ScramMechanism)
        if (credential := credentials.get((name, int(mechanism)))) is not None
    ]


def _described(
    name: str, times: int, infos: list[CredentialInfo]
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name)
    if times > 1:
        text = "Cannot describe SCRAM credentials for the same user twice in a single request: "
        set_error(result, Refusal(ErrorCode.DUPLICATE_RESOURCE, f"{text}{name}"))
    elif not infos:
        text = "Attempt to describe a user credential that does not exist: "
        set_error(result, Refusal(ErrorCode.RESOURCE_NOT_FOUND, f"{text}{name}"))
    else:
        result.credential_infos = infos
    return result


async def alter_user_scram_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials. The response is sent once the changes are durable."""
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    results = {each.name: AlterUserScramCredentialsResult(user=each.name) for each in changes}
    steps: dict[str, tuple[_Change, ScramCredential | None]] = {}
    slices = Slices(context.node.env.clock)
    for each in changes:
        result = results[each.name]
        if result.error_code == ErrorCode.NONE:  # as in Kafka, a user's first error counts
            with errors_in(result):
                if each.name in steps:
                    raise Refusal(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
                credential = _checked(each)
                if credential is None:
                    _ensure_present(context.node.rules.credentials(), each)
                steps[each.name] = each, credential
        await slices.rest()

    def change(credentials: _Credentials) -> None:
        for name, (each, credential) in steps.items():
            if results[name].error_code == ErrorCode.NONE:
                with errors_in(results[name]):
                    _change_one(credentials, each, credential)

    try:
        await context.node.rules.change_credentials(change)
    except TidelogError as error:
        for result in results.values():
            set_error(result, error)
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _checked(change: _Change) -> ScramCredential | None:
    """Return the credential to set, None for a deletion. Raises Refusal for an invalid change."""
    if not change.name:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.name.encode()) > NAME_BYTES_MAX:
        text = f"Username has more than {NAME_BYTES_MAX} bytes"
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if change.mechanism not in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialDeletion):
        return None
    if change.iterations < ITERATIONS_MIN:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    sizes = len(change.salt), len(change.salted_password)
    if not all(1 <= size <= SALT_BYTES_MAX for size in sizes):
        raise Refusal(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Salt and salted password must have 1 to {SALT_BYTES_MAX} bytes",
        )
    mechanism = ScramMechanism(change.mechanism)
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    return credential_of(mechanism, salt, change.iterations, salted)


def _change_one(
    credentials: _Credentials, change: _Change, credential: ScramCredential | None
) -> None:
    """Apply a checked change.

    Raises Refusal if the credential to delete does not exist, or if `USERS_MAX` is reached.
    """
    key = (change.name, change.mechanism)
    if credential is None:
        _ensure_present(credentials, change)
        del credentials[key]
        return
    if key not in credentials and len(credentials) >= USERS_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"There are {USERS_MAX} credentials already")
    credentials[key] = credential


def _ensure_present(
    credentials: Mapping[tuple[str, int], ScramCredential], deletion: _Change
) -> None:
    """Raise Refusal if the credential to delete does not exist."""
    if (deletion.name, deletion.mechanism) not in credentials:
        text = "Attempt to delete a user credential that does not exist"
        raise Refusal(ErrorCode.RESOURCE_NOT_FOUND, text)


_TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(
    _context: RequestContext, _request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Refuse the request, because this listener has no authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(
    _context: RequestContext, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Refuse the request, because this listener has no authentication."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_TOO_LATE
    )


def guard_alter_user_scram_credentials(
    access: Access, request: AlterUserScramCredentialsRequest
) -> Guarded[AlterUserScramCredentialsRequest]:
    """Require ALTER on the cluster. The response to a denied request has an error per user."""
    if access.may_cluster(Operation.ALTER):
        return request, None
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    users = dict.fromkeys(each.name for each in changes)
    return None, denied_whole(access, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, users)
