"""Validation of topic changes, and the messages of refusals."""

from collections.abc import Callable
from typing import ClassVar

import pytest

from tidelog.config import TopicConfig
from tidelog.server.admin.config_changes import ConfigChange, ConfigChanges, merged
from tidelog.server.admin.topic_rules import (
    Layout,
    count_of,
    ensure_growth,
    ensure_name,
    ensure_new,
    parsed,
    topic_settings,
)
from tidelog.server.api.configs import topic_texts
from tidelog.server.runtime.errors import Refusal


def refused(call: Callable[[], object]) -> tuple[int, str | None]:
    """Return the code and the message of a refusal."""
    with pytest.raises(Refusal) as found:
        call()
    return found.value.error_code, found.value.message


class TestNames:
    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250])
    def test_names_that_kafka_refuses_are_refused(self, name: str) -> None:
        code, text = refused(lambda: ensure_name(name))
        assert code == 17
        assert text is not None
        assert text.startswith("Topic name is invalid: ")

    @pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__consumer_offsets"])
    def test_names_that_kafka_accepts_are_accepted(self, name: str) -> None:
        ensure_name(name)

    def test_existing_and_colliding_names_are_refused(self) -> None:
        ensure_new("a.b", ["ab", "a-b"])
        assert refused(lambda: ensure_new("a", ["a"])) == (36, "Topic 'a' already exists.")
        text = "Topic 'a_b' collides with existing topic: a.b"
        assert refused(lambda: ensure_new("a_b", ["a.b"])) == (17, text)


class TestCounts:
    def test_defaults_and_assignments(self) -> None:
        assert count_of(Layout(-1, -1), default=3, node_id=7) == 3
        assert count_of(Layout(5, 1), default=3, node_id=7) == 5
        given = Layout(-1, -1, [(1, [7]), (0, [7])])
        assert count_of(given, default=3, node_id=7) == 2

    @pytest.mark.parametrize(
        ("layout", "code", "text"),
        [
            (Layout(0, 1), 37, "non-positive"),
            (Layout(-2, 1), 37, "non-positive"),
            (Layout(1, 0), 38, "larger than 0"),
            (Layout(1, -2), 38, "larger than 0"),
            (Layout(1, 2), 38, "only 1 broker"),
            (Layout(1, -1, [(0, [7])]), 42, "numPartitions was not set"),
            (Layout(-1, 1, [(0, [7])]), 42, "replication factor was not set"),
            (Layout(-1, -1, [(1, [7])]), 39, "consecutive 0-based"),
            (Layout(-1, -1, [(0, [7]), (0, [7])]), 39, "multiple manual"),
            (Layout(-1, -1, [(0, [])]), 39, "empty replica list"),
            (Layout(-1, -1, [(0, [7, 7])]), 39, "more than once"),
            (Layout(-1, -1, [(0, [8])]), 39, "broker 8, but no such broker"),
        ],
    )
    def test_an_invalid_layout_is_refused(self, layout: Layout, code: int, text: str) -> None:
        found, said = refused(lambda: count_of(layout, default=3, node_id=7))
        assert (found, text in (said or "")) == (code, True)

    @pytest.mark.parametrize(
        ("wanted", "brokers", "code", "text"),
        [
            (3, None, 37, "already has 3 partition(s)"),
            (2, None, 37, "2 would not be an increase"),
            (5, [[7]], 39, "add 2 additional partition(s), but only 1"),
            (4, [[8]], 39, "broker 8"),
        ],
    )
    def test_growth(
        self, wanted: int, brokers: list[list[int]] | None, code: int, text: str
    ) -> None:
        found, said = refused(lambda: ensure_growth("t", 3, wanted, brokers, 7))
        assert (found, text in (said or "")) == (code, True)
        ensure_growth("t", 3, 5, [[7], [7]], 7)


class TestSettings:
    def test_last_of_one_name_counts(self) -> None:
        given, config = topic_settings([("retention.ms", "1"), ("retention.ms", "2")], {})
        assert (given, config.retention_ms) == ({"retention.ms": "2"}, 2)

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("nope", "1", "Unknown topic config name: nope"),
            ("log.retention.ms", "1", "Unknown topic config name: log.retention.ms"),
            ("retention.ms", None, "Null value not supported for topic configs: retention.ms"),
            ("retention.ms", "x", "Invalid value x for configuration retention.ms: "),
            ("tidelog.retention.clock", "moon", "Invalid value moon for configuration tidelog."),
        ],
    )
    def test_an_invalid_setting_is_refused(self, name: str, value: str | None, text: str) -> None:
        code, said = refused(lambda: topic_settings([(name, value)], {}))
        assert (code, text in (said or "")) == (40, True)

    def test_broker_settings_below(self) -> None:
        _, config = topic_settings([("segment.ms", "7")], {"log.retention.hours": "1"})
        assert (config.segment_ms, config.retention_ms) == (7, 3_600_000)


class TestChanges:
    given: ClassVar[dict[str, str]] = {"cleanup.policy": "compact", "retention.ms": "5"}
    config = TopicConfig.parse(given)[0]

    def changed(self, *changes: tuple[str, int, str | None]) -> dict[str, str | None]:
        parts = tuple(ConfigChange(*change) for change in changes)
        return topic_texts(ConfigChanges(parts), self.given, self.config)

    def test_each_operation(self) -> None:
        assert self.changed(("retention.ms", 0, "7"), ("segment.ms", 1, None)) == {
            "retention.ms": "7",
            "segment.ms": None,
        }
        assert self.changed(("cleanup.policy", 2, "delete,compact")) == {
            "cleanup.policy": "compact,delete"
        }
        assert self.changed(("cleanup.policy", 3, "compact")) == {"cleanup.policy": ""}
        assert self.changed(("cleanup.policy", 3, "delete")) == {"cleanup.policy": "compact"}
        throttled = "follower.replication.throttled.replicas"
        assert self.changed((throttled, 2, "0:1")) == {throttled: "0:1"}

    @pytest.mark.parametrize(
        ("before", "operation", "items", "after"),
        [
            ("delete", 2, "", "delete,"),  # an invalid policy, which is refused later
            ("delete", 2, ",compact", "delete,,compact"),
            ("delete", 2, ",", "delete"),
            ("delete", 2, "compact,", "delete,compact"),
            ("delete", 2, " delete", "delete, delete"),
            ("", 2, "", ""),
            ("", 2, "compact", "compact"),
            ("compact,delete", 3, " compact", "compact,delete"),
            ("compact,delete", 3, "compact, delete", "delete"),
            ("compact,delete", 3, "compact,,delete", ""),
            ("delete,delete", 3, "delete", "delete"),
        ],
    )
    def test_items_of_a_list_count_with_their_blanks(
        self, before: str, operation: int, items: str, after: str
    ) -> None:
        given = {"cleanup.policy": before}
        changes = ConfigChanges((ConfigChange("cleanup.policy", operation, items),))
        assert topic_texts(changes, given, TopicConfig()) == {"cleanup.policy": after}

    @pytest.mark.parametrize(
        ("changes", "code", "text"),
        [
            ([("retention.ms", 2, "7")], 40, "APPEND to key retention.ms because its type is not"),
            ([("nope", 3, "7")], 40, "SUBTRACT to key nope because its type is not"),
            ([("retention.ms", 0, None)], 42, "Null value not supported for : retention.ms"),
            ([("retention.ms", 0, "1"), ("retention.ms", 1, None)], 42, "duplicate config keys"),
            ([("retention.ms", 9, "1")], -1, ""),
        ],
    )
    def test_an_invalid_change_is_refused(
        self, changes: list[tuple[str, int, str | None]], code: int, text: str
    ) -> None:
        found, said = refused(lambda: self.changed(*changes))
        assert (found, text in (said or "")) == (code, True)

    def test_a_list_grows_at_its_end(self) -> None:
        """New items of a list follow its existing items, also the items of a default value."""
        appended = ConfigChanges((ConfigChange("cleanup.policy", 2, "compact"),))
        assert topic_texts(appended, {}, TopicConfig()) == {"cleanup.policy": "delete,compact"}
        config = TopicConfig.parse({"cleanup.policy": "delete,compact"})[0]
        assert config.text("cleanup.policy") == "delete,compact"

    def test_replacing_all(self) -> None:
        changes = ConfigChanges((ConfigChange("segment.ms", 0, "9"),), replaces_all=True)
        assert topic_texts(changes, self.given, self.config) == {
            "segment.ms": "9",
            "cleanup.policy": None,
            "retention.ms": None,
        }

    def test_values_are_held_against_each_other(self) -> None:
        parsed(merged(self.given, {"retention.ms": None, "segment.ms": "9"}), {})
        changes = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"}
        assert refused(lambda: parsed(merged(self.given, changes), {}))[0] == 40
