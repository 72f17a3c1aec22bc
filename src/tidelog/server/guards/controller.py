"""Guards of quotas, and of APIs about the quorum. Source: Kafka 4.3's KafkaApis, ControllerApis."""

from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.server.guards.common import DENIED_TEXT, Asker
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation

_TEXT: Final = DENIED_TEXT[ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def describe_client_quotas(asker: Asker, request: DescribeClientQuotasRequest) -> Answer:
    """DESCRIBE_CONFIGS on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE_CONFIGS):
        return asker.go_on(request)
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT, entries=None
    )


def alter_client_quotas(asker: Asker, request: AlterClientQuotasRequest) -> Answer:
    """ALTER_CONFIGS on the cluster."""
    if asker.may_cluster(Operation.ALTER_CONFIGS):
        return asker.go_on(request)
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuotas(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message=_TEXT,
                entity=entry.entity,
            )
            for entry in request.entries
        ]
    )


def describe_quorum(asker: Asker, request: DescribeQuorumRequest) -> Answer:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return asker.go_on(request)
    return DescribeQuorumResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )


def update_features(asker: Asker, request: UpdateFeaturesRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    return UpdateFeaturesResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )


def unregister_broker(asker: Asker, request: UnregisterBrokerRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    return UnregisterBrokerResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )


def add_raft_voter(asker: Asker, request: AddRaftVoterRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    return AddRaftVoterResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )


def remove_raft_voter(asker: Asker, request: RemoveRaftVoterRequest) -> Answer:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return asker.go_on(request)
    return RemoveRaftVoterResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_TEXT
    )
