"""DescribeAcls, CreateAcls, DeleteAcls: the rules of the authorizer, where there is one.

Without one each is answered with error 54, as by a Kafka that has none set.

Source: Kafka's protocol guide, APIs 29, 30 and 31; KIP-140, KIP-290; Kafka 4.3's AclApis and
AclControlManager.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tidelog.server.errors import Refusal, refusal_of
from tidelog.server.requests import MANY, Long, RequestContext
from tidelog.server.security.authorizer import (
    CLUSTER_NAME,
    IN_ORDER,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tidelog.server.security.rules import ACLS_MAX

_NONE: Final = "No Authorizer is configured."
_Filter: TypeAlias = DescribeAclsRequest | DeleteAclsFilter


# -- looking -------------------------------------------------------------------------------------


async def describe_acls(
    context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | Long:
    """The rules that pass a filter, by what they are about."""
    authorizer = context.node.authorizer
    if authorizer is None:
        text = "No Authorizer is configured on the broker"
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=text)
    acls, wanted = authorizer.acls, _filter_of(request)
    resources = await context.node.work.run_long(len(acls), _resources, acls, wanted)
    response = DescribeAclsResponse(error_message=None, resources=resources)
    return Long(response, resources) if len(acls) > MANY else response


def _resources(acls: Iterable[Acl], wanted: AclFilter | None) -> list[DescribeAclsResource]:
    """The rules that pass a filter, by what they are about; for any thread."""
    found: defaultdict[tuple[int, str, int], list[AclDescription]] = defaultdict(list)
    for acl in _passing(acls, wanted):
        found[acl.resource_type, acl.name, acl.pattern].append(
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
        for (kind, name, pattern), described in found.items()
    ]


def _filter_of(asked: _Filter) -> AclFilter | None:
    """A filter; None for one with a number that means nothing: no rule passes it.

    Raises:
        CorruptMessage: A number that says that it is unknown; Kafka can't read such a request.
    """
    _ensure_known(
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.operation,
        asked.permission_type,
    )
    try:
        return AclFilter(
            resource_type=ResourceType(asked.resource_type_filter),
            name=asked.resource_name_filter,
            pattern=PatternType(asked.pattern_type_filter),
            principal=asked.principal_filter,
            host=asked.host_filter,
            operation=Operation(asked.operation),
            permission=Permission(asked.permission_type),
        )
    except ValueError:
        return None


def _ensure_known(*numbers: int) -> None:
    """That none of them is UNKNOWN; raises CorruptMessage."""
    if 0 in numbers:
        raise CorruptMessage(f"a rule with an UNKNOWN element: {numbers}")


def _passing(acls: Iterable[Acl], wanted: AclFilter | None) -> list[Acl]:
    return [] if wanted is None else sorted(filter(wanted.passes, acls), key=IN_ORDER)


# -- changing ------------------------------------------------------------------------------------


async def create_acls(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Add rules; answered when they are durable. Those that are there already are no error."""
    authorizer = context.node.authorizer
    if authorizer is None:
        disabled = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE)
        return CreateAclsResponse(results=[disabled for _ in request.creations])
    results: list[AclCreationResult] = []
    acls: list[tuple[Acl, AclCreationResult]] = []
    for creation in request.creations:
        result = AclCreationResult(error_code=0, error_message=None)
        try:
            acl = _acl_of(creation)
            acls.append((acl, result))
        except Refusal as why:
            result.error_code, result.error_message = why.error_code, why.message
        results.append(result)
    try:
        refused = await context.node.rules.add_acls(acl for acl, _ in acls)
        failure = Refusal(ErrorCode.POLICY_VIOLATION, f"There are {ACLS_MAX} rules already")
    except TidelogError as error:
        refused, failure = frozenset(acl for acl, _ in acls), refusal_of(error)
    for acl, result in acls:
        if acl in refused:
            result.error_code, result.error_message = failure.error_code, failure.message
    return CreateAclsResponse(results=results)


def _acl_of(asked: AclCreation) -> Acl:
    """A rule that can be kept.

    Raises:
        Refusal: It can't be.
        CorruptMessage: As `_filter_of`.
    """
    _ensure_known(
        asked.resource_type, asked.resource_pattern_type, asked.operation, asked.permission_type
    )
    try:
        found = Acl(
            resource_type=ResourceType(asked.resource_type),
            name=asked.resource_name,
            pattern=PatternType(asked.resource_pattern_type),
            principal=asked.principal,
            host=asked.host,
            operation=Operation(asked.operation),
            permission=Permission(asked.permission_type),
        )
    except ValueError as error:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"ACL contains unknown elements: {error}"
        ) from error
    _ensure_concrete(found)
    for is_wrong, text in (
        (not found.name, "Resource name should not be empty"),
        (
            _is_other_cluster(found),
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        ),
        (":" not in found.principal, "Principal must be TYPE:NAME"),
    ):
        if is_wrong:
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
    return found


def _ensure_concrete(acl: Acl) -> None:
    """That it is about something, not about anything as a filter is; raises Refusal."""
    for is_any, text in (
        (acl.resource_type is ResourceType.ANY, "resourceType must not be ANY"),
        (acl.pattern < PatternType.LITERAL, f"patternType must not be {acl.pattern.name}"),
        (acl.operation is Operation.ANY, "operation must not be ANY"),
        (acl.permission is Permission.ANY, "permissionType must not be ANY"),
    ):
        if is_any:
            # Kafka trips over it, and says so.
            raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, text)


def _is_other_cluster(acl: Acl) -> bool:
    return acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME


async def delete_acls(
    context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse | Long:
    """Remove the rules that pass filters; answered when that is durable."""
    authorizer = context.node.authorizer
    if authorizer is None:
        refused = DeleteAclsFilterResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE
        )
        return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
    results: list[DeleteAclsFilterResult] = []
    going: list[list[Acl]] = []
    for asked in request.filters:
        wanted = _filter_of(asked)
        if wanted is None:
            text = "Filter contains UNKNOWN elements"
            results.append(
                DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
            )
            continue
        acls = authorizer.acls
        found, removed = await context.node.work.run_long(len(acls), _removed, acls, wanted)
        going.append(found)
        results.append(
            DeleteAclsFilterResult(error_code=0, error_message=None, matching_acls=removed)
        )
    try:
        await context.node.rules.remove_acls([*chain.from_iterable(going)])
    except TidelogError as error:
        failure = refusal_of(error)
        for result in results:
            result.error_code, result.error_message = failure.error_code, failure.message
            result.matching_acls = []
    response = DeleteAclsResponse(filter_results=results)
    return Long(response, results) if sum(map(len, going)) > MANY else response


def _removed(
    acls: Iterable[Acl], wanted: AclFilter
) -> tuple[list[Acl], list[DeleteAclsMatchingAcl]]:
    """The rules that pass a filter, and how the response names them; for any thread."""
    found = _passing(acls, wanted)
    return found, [_matching(acl) for acl in found]


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=0,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
