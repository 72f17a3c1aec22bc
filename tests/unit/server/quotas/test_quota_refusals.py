"""Each refusal of a change or a filter of quotas, with its message and error code.

Source of the messages: Kafka 4.3's ClientQuotaControlManager and ClientQuotasImage.
"""

import math
from collections.abc import Mapping

import pytest

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.configs import QuotaFilterComponent, QuotaOperation
from tidelog.server.admin.quotas import ANY, DEFAULT, EXACT, change, filter_of
from tidelog.server.runtime.errors import Refusal

Known = dict[tuple[tuple[str, str | None], ...], Mapping[str, float]]
ALICE: dict[str, str | None] = {"user": "alice"}
RATE = "producer_byte_rate"


def component(kind: str, match_type: int, match: str | None = None) -> QuotaFilterComponent:
    return QuotaFilterComponent(entity_type=kind, match_type=match_type, match=match)


@pytest.mark.parametrize(
    ("components", "text"),
    [
        ([component("", ANY)], "Invalid empty entity type."),
        (
            [component("user", ANY), component("user", EXACT, "alice")],
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [component("user", EXACT)],
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [component("user", DEFAULT, "alice")],
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [component("user", ANY, "alice")],
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([component("user", 3)], "Unknown match type 3"),
        ([component("user", -1)], "Unknown match type -1"),
        (
            [component("ip", DEFAULT), component("client-id", ANY)],
            (
                "Invalid entity filter component combination. IP filter component should not be"
                " used with user or clientId filter component."
            ),
        ),
    ],
)
def test_refused_filters(components: list[QuotaFilterComponent], text: str) -> None:
    with pytest.raises(Refusal) as refused:
        filter_of(components, is_strict=False)
    assert (refused.value.error_code, refused.value.message) == (ErrorCode.INVALID_REQUEST, text)


def test_a_filter_of_an_unknown_type_is_unsupported() -> None:
    with pytest.raises(Refusal) as refused:
        filter_of([component("planet", ANY)], is_strict=True)
    assert refused.value.error_code is ErrorCode.UNSUPPORTED_VERSION
    assert refused.value.message == "Unsupported entity type planet"


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        ({}, RATE, 1.0, "Invalid empty client quota entity"),
        ({"planet": "x"}, RATE, 1.0, "Unhandled client quota entity type: planet"),
        ({"client-id": ""}, RATE, 1.0, "Empty client-id not supported"),
        ({"user": "é" * 513}, RATE, 1.0, "The name of a user has more than 1024 bytes"),
        (
            {"ip": None, "user": None},
            RATE,
            1.0,
            (
                "Invalid quota entity combination, IP entity should not be combined with User or"
                " ClientId"
            ),
        ),
        (
            ALICE,
            "controller_mutation_rate",
            1.0,
            "Quota controller_mutation_rate is not enforced by this broker",
        ),
        (
            {"ip": "1.2.3.4"},
            "connection_creation_rate",
            1.0,
            "Quota connection_creation_rate is not enforced by this broker",
        ),
        (
            ALICE,
            "connection_creation_rate",
            1.0,
            "Invalid configuration key connection_creation_rate",
        ),
        ({"ip": "1.2.3.4"}, RATE, 1.0, f"Invalid configuration key {RATE}"),
        (ALICE, RATE, 0.0, f"Quota {RATE} must be greater than 0"),
        (ALICE, RATE, math.nan, f"Quota {RATE} must be a number"),
        (ALICE, "request_percentage", math.inf, "Quota request_percentage must be a number"),
        (ALICE, RATE, 2.0**63 * 1.01, f"Proposed value for {RATE} is too large for a LONG."),
        (ALICE, RATE, 1.00001, f"{RATE} cannot be a fractional value."),
    ],
)
def test_refused_changes(entity: dict[str, str | None], key: str, value: float, text: str) -> None:
    """A refused operation also undoes the accepted operation before it."""
    quotas: Known = {(("user", "alice"),): {RATE: 7.0}}
    accepted = QuotaOperation(key="consumer_byte_rate", value=1.0, remove=False)
    refused_op = QuotaOperation(key=key, value=value, remove=False)
    with pytest.raises(Refusal) as refused:
        change(quotas, entity, [accepted, refused_op] if entity == ALICE else [refused_op])
    assert (refused.value.error_code, refused.value.message) == (ErrorCode.INVALID_REQUEST, text)
    assert quotas == {(("user", "alice"),): {RATE: 7.0}}


def test_the_largest_accepted_values() -> None:
    quotas: Known = {}
    ops = [
        QuotaOperation(key=RATE, value=2.0**63, remove=False),
        QuotaOperation(key="consumer_byte_rate", value=1.0000005, remove=False),
        QuotaOperation(key="request_percentage", value=0.5, remove=False),
    ]
    change(quotas, {"user": "é" * 512}, ops)
    assert list(quotas.values()) == [
        {RATE: 2.0**63, "consumer_byte_rate": 1.0000005, "request_percentage": 0.5}
    ]
