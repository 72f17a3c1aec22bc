"""Regular expressions of consumer groups, resolved to topics.

All expressions of a group are resolved together in a thread, because many topics would block the
event loop, and no more often than needed.

Source: Kafka 4.3's group coordinator; KIP-848.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import MissingDependency
from tidelog.server.groups.consumer_updates import (
    ConsumerUpdate,
    ConsumerUpdates,
    MemberMatch,
    drop_regex,
    regexes_after,
)
from tidelog.server.groups.group_updates import GroupUpdate
from tidelog.server.groups.modern_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from tidelog.server.groups.modern_records import RegexChange
from tidelog.server.regexes import UnusableRegex, find_matches, require_usable
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.threads import Work

LOGGER: Final = logging.getLogger("tidelog.server.groups")

# Expressions of one group are looked up at most so often.
LOOK_UP_MIN_INTERVAL_MS: Final = 10_000


# What each expression means; expressions that can't be looked up are not in it.
Meanings: TypeAlias = Mapping[str, frozenset[str]]


# Whether a topic may be found; None where all may be.
MaySee: TypeAlias = Callable[[str], bool] | None


class RegexStatus(Enum):
    """What a heartbeat does to its member's expression."""

    SAME = "same"
    # It has another one, whose topics are not known yet.
    CHANGED = "changed"
    # It has another one, whose topics are known, or none any more.
    RESOLVED = "resolved"


def find_meanings(regexes: Iterable[str], names: Sequence[str]) -> Meanings:
    """The topics of each expression; those that take too long are left out, and logged."""
    meanings: dict[str, frozenset[str]] = {}
    for text in regexes:
        try:
            meanings[text] = find_matches(text, names)
        except (UnusableRegex, MissingDependency) as error:
            LOGGER.warning("expression %r is not looked up: %s", text, error)
    return meanings


class Regexes:
    """All groups' expressions. Belongs to the loop's thread."""

    def __init__(self, updates: ConsumerUpdates, work: Work) -> None:
        self._updates = updates
        self._work = work
        self._running = set[asyncio.Task[None]]()
        # Since when there are the topics that there are: wall time, for it outlives a restart.
        self._seen = updates.topics.all()
        self._grown_ms = updates.clock.now_ms()

    # -- a member's own ----------------------------------------------------------------------

    def change(
        self, update: ConsumerUpdate, match: MemberMatch, new: ConsumerMember
    ) -> RegexStatus:
        """Take note of a member's expression; one that nobody has yet must be a valid one."""
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

    # -- the group's -------------------------------------------------------------------------

    def maybe_look_up(
        self, update: ConsumerUpdate, match: MemberMatch, new: ConsumerMember, may_see: MaySee
    ) -> None:
        """Look all of the group's expressions up where one is new, or topics or time ask for it.

        They find what the member that asks now may see, as in Kafka.
        """
        group = update.group
        if not group.subscribed_regexes and not new.subscription.regex:
            return  # most groups have none
        regexes = regexes_after(group, match.known, new.subscription)
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
        """Wall time at which topics were last seen to have grown."""
        topics = self._updates.topics.all()
        if topics is not self._seen:
            if topics.keys() - self._seen.keys():
                self._grown_ms = max(self._updates.clock.now_ms(), self._grown_ms + 1)
            self._seen = topics
        return self._grown_ms

    def _begin(self, group: ConsumerGroup, regexes: list[str], may_see: MaySee) -> None:
        group.resolving = True
        version, now_ms = self._version(), self._updates.clock.now_ms()
        names = list(filter(may_see, self._updates.topics.all()))

        async def look_up() -> None:
            try:
                meanings = await self._work.run(find_meanings, regexes, names)
            except Exception:
                LOGGER.exception("expressions can't be looked up")
                meanings = {}
            group.resolving = False
            if self._updates.table.get(group.group_id) is group:
                self._take(group, meanings, version, now_ms)

        task = asyncio.get_running_loop().create_task(look_up())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _take(self, group: ConsumerGroup, meanings: Meanings, version: int, now_ms: int) -> None:
        """Write down what was found; where that is other than before, an epoch begins."""
        update = GroupUpdate(group)
        changed = False
        names = set(group.topic_counts)
        for regex in group.subscribed_regexes:
            before = group.regexes.get(regex, ResolvedRegex())
            # What could not be looked up means what it meant, and is not tried again at once.
            topics = meanings.get(regex, before.topics)
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
