"""Regular expressions of consumer groups, resolved to topics.

All expressions of a group are resolved together, and only when a resolution is due
(`maybe_look_up`). A thread resolves them, because matching many topics would block the event loop.

Source: Kafka 4.3's group coordinator; KIP-848.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import MissingDependency
from tidelog.server.groups.consumer_rebalance import (
    ConsumerUpdate,
    ConsumerUpdates,
    drop_regex,
)
from tidelog.server.groups.group_updates import GroupUpdate
from tidelog.server.groups.members import MemberMatch
from tidelog.server.groups.modern_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from tidelog.server.groups.modern_records import RegexChange
from tidelog.server.regexes import UnusableRegex, find_matches, require_usable
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.threads import Work

LOGGER: Final = logging.getLogger("tidelog.server.groups")

# Minimum interval between two resolutions of one group's expressions.
LOOK_UP_MIN_INTERVAL_MS: Final = 10_000

# Topics that each expression matches. Expressions that can't be resolved are left out.
Matches: TypeAlias = Mapping[str, frozenset[str]]

# Function that returns whether an expression may match a topic; None if all topics are visible.
MaySee: TypeAlias = Callable[[str], bool] | None


class RegexStatus(Enum):
    """Effect of a heartbeat on its member's expression."""

    SAME = "same"
    # The expression has changed, and the new expression is not resolved yet.
    CHANGED = "changed"
    # The expression has changed: the new expression is resolved already, or the member has no
    # expression now.
    RESOLVED = "resolved"


def find_all_matches(regexes: Iterable[str], names: Sequence[str]) -> Matches:
    """Return the topics of each expression. Unusable expressions are logged and left out."""
    matches: dict[str, frozenset[str]] = {}
    for text in regexes:
        try:
            matches[text] = find_matches(text, names)
        except (UnusableRegex, MissingDependency) as error:
            LOGGER.warning("can't resolve expression %r: %s", text, error)
    return matches


class Regexes:
    """Regular expressions of all groups. Used only in the event loop's thread."""

    def __init__(self, updates: ConsumerUpdates, work: Work) -> None:
        self._updates = updates
        self._work = work
        self._running = set[asyncio.Task[None]]()
        # The topics at the last call of `_version`, and the time at which topics were last added.
        # `_version` returns this time as the version. It is wall time, so that versions also
        # increase across restarts.
        self._topics = updates.topics.all()
        self._grown_ms = updates.clock.now_ms()

    # -- the expression of a member ----------------------------------------------------------

    def change(
        self, update: ConsumerUpdate, match: MemberMatch, new: ConsumerMember
    ) -> RegexStatus:
        """Return how a member's expression changes; reject an invalid new expression.

        If no member subscribes to the old expression any more, add its removal to the update.

        Raises:
            Refusal: The expression is new in the group and invalid.
        """
        group = update.group
        was = match.member.subscription.regex
        now = new.subscription.regex
        if was == now:
            return RegexStatus.SAME
        if was and group.subscribed_regexes.get(was) == 1:
            drop_regex(update, was)
        if not now:
            return RegexStatus.RESOLVED
        if not group.subscribed_regexes.get(now):
            _require_valid(now)
            return RegexStatus.CHANGED
        return RegexStatus.RESOLVED if now in group.regexes else RegexStatus.CHANGED

    # -- the expressions of a group ----------------------------------------------------------

    def maybe_look_up(
        self, update: ConsumerUpdate, match: MemberMatch, new: ConsumerMember, may_see: MaySee
    ) -> None:
        """Resolve a group's expressions if a resolution is due.

        A resolution is due if the expressions changed, topics were added or the refresh interval is
        over. Exception: no resolution is due while another resolution of the group runs, or within
        `LOOK_UP_MIN_INTERVAL_MS` after the last resolution. As in Kafka, the result contains only
        topics that the member that sent this request may see.
        """
        group = update.group
        if not group.subscribed_regexes and not new.subscription.regex:
            return  # the usual case
        regexes = group.regexes_after(match.previous, new.subscription)
        if not regexes or group.resolving:
            return
        now_ms = self._updates.clock.now_ms()
        last_ms = group.resolved_ms
        if last_ms is not None and 0 <= now_ms - last_ms <= LOOK_UP_MIN_INTERVAL_MS:
            return
        interval_ms = self._updates.config.group_consumer_regex_refresh_interval_ms
        is_new = (
            new.subscription.regex != match.member.subscription.regex
            and new.subscription.regex not in group.regexes
        )
        is_old = last_ms is not None and not 0 <= now_ms - last_ms <= interval_ms
        has_grown = group.resolved_version < self._version()
        if is_new or is_old or has_grown or regexes.keys() != group.regexes.keys():
            update.actions.append(lambda: self._begin(group, list(regexes), may_see))

    def _version(self) -> int:
        """Return the wall time at which topics were last added."""
        topics = self._updates.topics.all()
        if topics is not self._topics:
            if topics.keys() - self._topics.keys():
                self._grown_ms = max(self._updates.clock.now_ms(), self._grown_ms + 1)
            self._topics = topics
        return self._grown_ms

    def _begin(self, group: ConsumerGroup, regexes: list[str], may_see: MaySee) -> None:
        group.resolving = True
        version, now_ms = self._version(), self._updates.clock.now_ms()
        names = list(filter(may_see, self._updates.topics.all()))

        async def look_up() -> None:
            try:
                matches = await self._work.run(find_all_matches, regexes, names)
            except Exception:
                LOGGER.exception("can't resolve expressions")
                matches = {}
            group.resolving = False
            if self._updates.table.get(group.group_id) is group:
                self._apply(group, matches, version, now_ms)

        task = asyncio.get_running_loop().create_task(look_up())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _apply(self, group: ConsumerGroup, matches: Matches, version: int, now_ms: int) -> None:
        """Write the topics that the expressions match. If these topics changed, begin an epoch."""
        update = GroupUpdate(group)
        changed = False
        names = set(group.topic_counts)
        for regex in group.subscribed_regexes:
            before = group.regexes.get(regex, ResolvedRegex())
            # An expression that can't be resolved keeps its topics and is not retried at once.
            topics = matches.get(regex, before.topics)
            names |= topics
            changed |= topics != before.topics
            update.changes.append(RegexChange(regex, ResolvedRegex(topics, version, now_ms)))
        if update.changes:
            self._updates.begin_epoch(update, names, is_due=changed)
            self._updates.write(update)


def _require_valid(text: str) -> None:
    try:
        require_usable(text)
    except UnusableRegex as error:
        raise Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"expression `{text}` of the subscribed topics is not valid: {error}",
        ) from error
    except MissingDependency as error:
        raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
