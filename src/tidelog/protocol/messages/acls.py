"""DescribeAcls, CreateAcls and DeleteAcls: who may do what.

Source: Kafka's protocol guide, APIs 29, 30 and 31; KIP-140, KIP-290 (patterns of names).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import INT8, INT16, INT32, STRING, array, nullable_string, struct, wire


@dataclass(slots=True, kw_only=True)
class DescribeAclsRequest:
    """Which rules pass this filter? Null lets every name pass."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(nullable_string())
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(nullable_string())
    host_filter: str | None = wire(nullable_string())
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True)
class AclDescription:
    """A rule."""

    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True)
class DescribeAclsResource:
    """What rules are about."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    acls: list[AclDescription] = wire(array(struct(AclDescription)))


@dataclass(slots=True, kw_only=True)
class DescribeAclsResponse:
    """The rules."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resources: list[DescribeAclsResource] = wire(array(struct(DescribeAclsResource)))


@dataclass(slots=True, kw_only=True)
class AclCreation:
    """A rule and what it is about."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True)
class CreateAclsRequest:
    """New rules."""

    creations: list[AclCreation] = wire(array(struct(AclCreation)))


@dataclass(slots=True, kw_only=True)
class AclCreationResult:
    """Whether a rule was created."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class CreateAclsResponse:
    """What was created, in the order asked."""

    throttle_time_ms: int = wire(INT32)
    results: list[AclCreationResult] = wire(array(struct(AclCreationResult)))


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilter:
    """A filter; null lets every name pass."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(nullable_string())
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(nullable_string())
    host_filter: str | None = wire(nullable_string())
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True)
class DeleteAclsRequest:
    """Delete the rules that pass these filters."""

    filters: list[DeleteAclsFilter] = wire(array(struct(DeleteAclsFilter)))


@dataclass(slots=True, kw_only=True)
class DeleteAclsMatchingAcl:
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


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilterResult:
    """What passed one filter."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    matching_acls: list[DeleteAclsMatchingAcl] = wire(array(struct(DeleteAclsMatchingAcl)))


@dataclass(slots=True, kw_only=True)
class DeleteAclsResponse:
    """What was deleted, in the order of the filters."""

    throttle_time_ms: int = wire(INT32)
    filter_results: list[DeleteAclsFilterResult] = wire(array(struct(DeleteAclsFilterResult)))
