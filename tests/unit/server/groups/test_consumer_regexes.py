"""Regular expressions of groups: refused expressions, and topics that a lookup omits."""

import sys

import pytest
from tests.worlds.brokers.groups import GROUP, World

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.requests import HeartbeatRequest, HeartbeatResult
from tidelog.server.groups.topic_regexes import find_all_matches


def subscribe(regex: str) -> HeartbeatResult:
    asked = HeartbeatRequest(
        group_id=GROUP,
        member_id="A",
        rebalance_timeout_ms=60_000,
        topics=frozenset(),
        regex=regex,
        owned={},
    )
    return World().heartbeats.heartbeat(asked).value


def test_an_expression_that_breaks_a_rule_is_refused_with_the_reason() -> None:
    said = subscribe("st(*")
    assert said.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert said.message == (
        "expression `st(*` of the subscribed topics is not valid:"
        " no argument for repetition operator: *"
    )


def test_without_the_library_the_refusal_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    said = subscribe("st.*")
    assert said.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "pip install 'tidelog[broker]'" in (said.message or "")


def test_a_lookup_skips_and_logs_unusable_expressions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert find_all_matches(["r.*", "(", "s.*"], ["routes", "stops"]) == {
        "r.*": {"routes"},
        "s.*": {"stops"},
    }
    assert "can't resolve expression '(': missing ): (" in caplog.text
