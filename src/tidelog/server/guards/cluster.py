"""Guards of APIs about the cluster, its rules, users, settings and directories.

Source: Kafka 4.3's KafkaApis, ControllerApis, AclApis, ConfigHelper.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tidelog.error_codes import ErrorCode
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
from tidelog.protocol.messages.altered_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartition,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ElectionPartitionResult,
    ElectionTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignedPartition,
    ReassignedTopic,
)
from tidelog.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tidelog.server.errors import Refusal, refusal_of
from tidelog.server.guards.common import DENIED_TEXT, Asker, then
from tidelog.server.handlers.configs import (
    ALTERED_KINDS,
    DESCRIBED_KINDS,
    GROUP,
    TOPIC,
    ensure_sound_for_anybody,
)
from tidelog.server.handlers.metadata import CLUSTER_OPERATIONS
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    class _Resource(Protocol):
        """Something that has settings."""

        resource_type: int
        resource_name: str


_TEXT: Final = DENIED_TEXT[ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
_Answer = TypeVar("_Answer", AlterConfigsResourceResponse, IncrementalAlterConfigsResourceResponse)
_R = TypeVar("_R", bound="_Resource")
_Split: TypeAlias = "tuple[list[_R], list[tuple[_R, int]]]"


# -- rules ---------------------------------------------------------------------------------------


def describe_acls(asker: Asker, request: DescribeAclsRequest) -> Answer:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return asker.go_on(request)
    return DescribeAclsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )


def create_acls(asker: Asker, request: CreateAclsRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    refused = AclCreationResult(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )
    return CreateAclsResponse(results=[refused for _ in request.creations])


def delete_acls(asker: Asker, request: DeleteAclsRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])


# -- users ---------------------------------------------------------------------------------------


def describe_user_scram_credentials(
    asker: Asker, request: DescribeUserScramCredentialsRequest
) -> Answer:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return asker.go_on(request)
    # As many as were asked for, and without their names, as Kafka answers.
    refused = DescribeUserScramCredentialsResult(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        error_message=_TEXT,
        results=[refused for _ in request.users or ()],
    )


def alter_user_scram_credentials(asker: Asker, request: AlterUserScramCredentialsRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
            )
            for name in dict.fromkeys(names)
        ]
    )


# -- settings ------------------------------------------------------------------------------------


def _split(asker: Asker, resources: "Iterable[_R]", operation: Operation) -> "_Split[_R]":
    """Resources whose settings may be looked at or changed, and the others with their errors."""
    allowed: list[_R] = []
    denied: list[tuple[_R, int]] = []
    for resource in resources:
        name, code = resource.resource_name, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if resource.resource_type == TOPIC:
            may, code = asker.may_topic(operation, name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif resource.resource_type == GROUP:
            may, code = asker.may_group(operation, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            may = asker.may_cluster(operation)
        if may:
            allowed.append(resource)
        else:
            denied.append((resource, code))
    return allowed, denied


def describe_configs(asker: Asker, request: DescribeConfigsRequest) -> Answer:
    """DESCRIBE_CONFIGS on each topic or group, on the cluster for what else there is."""
    if not DESCRIBED_KINDS.issuperset(each.resource_type for each in request.resources):
        return asker.go_on(request)  # none is described
    request.resources, denied = _split(asker, request.resources, Operation.DESCRIBE_CONFIGS)

    def add(said: DescribeConfigsResponse) -> None:
        said.results.extend(
            DescribeConfigsResult(
                error_code=code,
                error_message=DENIED_TEXT[code],
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, code in denied
        )

    return then(asker.go_on(request), add)


_Altered: TypeAlias = "AlterConfigsResource | IncrementalAlterConfigsResource"


class _Refusals:
    """What is said of resources that may not be altered; what is wrong with them comes first."""

    def __init__(
        self, asker: Asker, resources: "Iterable[_Altered]", kinds: frozenset[int]
    ) -> None:
        self._node = asker.context.node
        self._kinds = kinds
        self._times = Counter((each.resource_type, each.resource_name) for each in resources)

    def of(self, kind: type[_Answer], resource: "_Altered", code: int) -> _Answer:
        """The refusal of one."""
        times = self._times[resource.resource_type, resource.resource_name]
        try:
            ensure_sound_for_anybody(self._node, resource, times, self._kinds)
        except Refusal as error:
            return _refused(kind, resource, refusal_of(error))
        return _refused(kind, resource, Refusal(code, DENIED_TEXT[code]))


def _refused(kind: type[_Answer], resource: "_Resource", why: Refusal) -> _Answer:
    return kind(
        error_code=why.error_code,
        error_message=why.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def alter_configs(asker: Asker, request: AlterConfigsRequest) -> Answer:
    """ALTER_CONFIGS on each topic or group, on the cluster for what else there is."""
    refusals = _Refusals(asker, request.resources, ALTERED_KINDS)
    request.resources, denied = _split(asker, request.resources, Operation.ALTER_CONFIGS)

    def add(said: AlterConfigsResponse) -> None:
        said.responses.extend(refusals.of(AlterConfigsResourceResponse, *each) for each in denied)

    return then(asker.go_on(request), add)


def incremental_alter_configs(asker: Asker, request: IncrementalAlterConfigsRequest) -> Answer:
    """The same."""
    refusals = _Refusals(asker, request.resources, DESCRIBED_KINDS)
    request.resources, denied = _split(asker, request.resources, Operation.ALTER_CONFIGS)

    def add(said: IncrementalAlterConfigsResponse) -> None:
        kind = IncrementalAlterConfigsResourceResponse
        said.responses.extend(refusals.of(kind, *each) for each in denied)

    return then(asker.go_on(request), add)


def list_config_resources(asker: Asker, request: ListConfigResourcesRequest) -> Answer:
    """DESCRIBE_CONFIGS on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE_CONFIGS):
        return asker.go_on(request)
    return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


# -- the cluster itself --------------------------------------------------------------------------


def describe_cluster(asker: Asker, request: DescribeClusterRequest) -> Answer:
    """Anybody may ask; what he may do is told to who may describe the cluster."""

    def change(said: DescribeClusterResponse) -> None:
        if request.include_cluster_authorized_operations and not said.error_code:
            said.cluster_authorized_operations = asker.cluster_bits(CLUSTER_OPERATIONS)

    return then(asker.go_on(request), change)


def describe_log_dirs(asker: Asker, request: DescribeLogDirsRequest) -> Answer:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return asker.go_on(request)
    return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def alter_replica_log_dirs(asker: Asker, request: AlterReplicaLogDirsRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            found = AlterReplicaLogDirTopicResult(topic_name=topic.name)
            found = results.setdefault(topic.name, found)
            found.partitions.extend(
                AlterReplicaLogDirPartition(
                    partition_index=number, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                )
                for number in topic.partitions
            )
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def elect_leaders(asker: Asker, request: ElectLeadersRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    return ElectLeadersResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        replica_election_results=[
            ElectionTopicResult(
                topic=topic.topic,
                partition_result=[
                    ElectionPartitionResult(
                        partition_id=number,
                        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                        error_message=_TEXT,
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_partition_reassignments(
    asker: Asker, request: AlterPartitionReassignmentsRequest
) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    return AlterPartitionReassignmentsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        error_message=_TEXT,
        responses=[
            ReassignedTopic(
                name=topic.name,
                partitions=[
                    ReassignedPartition(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                        error_message=_TEXT,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def list_partition_reassignments(
    asker: Asker, request: ListPartitionReassignmentsRequest
) -> Answer:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return asker.go_on(request)
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )
