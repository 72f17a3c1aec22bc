"""Sums up a group's lag over partitions, and describes the lag in sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isinf
from typing import Final

from tidelog.amounts import duration_text, plural, verb
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.group_lag import AgeClock, PartitionLag, State
from tidelog.timespec import time_text
from tidelog.types import HOUR_MS, TopicPartition

# Ends of sentences for the states other than `OK`: the first text follows the name of one
# partition, the second text follows several names.
_BAD: Mapping[State, tuple[str, str]] = {
    State.NO_COMMIT: (
        "has no committed offset and is not counted",
        "have no committed offset and are not counted",
    ),
    State.LOST: ("has lost records", "have lost records"),
    State.BEYOND_END: ("is committed beyond the end", "are committed beyond the end"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSum:
    """Lag of a group in several partitions.

    A partition without a committed offset counts only in `partitions`, `states` and `uncommitted`.
    Whether its records are unread depends on the group's setting `auto.offset.reset`, which is
    unknown.

    Attributes:
        partitions: Number of partitions in the sum.
        behind: Partitions with unread records, sorted.
        worst: The partition of `behind` with the oldest unread record; among equally old records,
            the partition with the most unread records. None if no partition is behind.
        records: Number of unread records.
        is_exact: Whether the number of unread records is exact, not an upper bound.
        behind_ms: Age in ms of the oldest unread record; 0 if all records are read, None if no age
            is known.
        offsets_per_s: Offsets consumed per second in all partitions; None if the number for a
            partition is unknown.
        catch_up_s: Seconds until the group has reached the end of all partitions: infinite if the
            group does not approach the end of a partition; else None if the time is unknown for a
            partition.
        states: Number of partitions in each state other than `OK`.
        uncommitted: Partitions without a committed offset, sorted.
        lost: Number of offsets deleted before the group read them.
    """

    partitions: int
    behind: tuple[TopicPartition, ...]
    worst: PartitionLag | None
    records: int
    is_exact: bool
    behind_ms: int | None
    offsets_per_s: float | None
    catch_up_s: float | None
    states: Mapping[State, int]
    uncommitted: tuple[TopicPartition, ...]
    lost: int

    @property
    def unread(self) -> str:
        """Number of unread records as text, such as `at most 5 records` for an upper bound."""
        return _unread_text(self.records, is_exact=self.is_exact)

    @property
    def worst_partition(self) -> str | None:
        """Name of the partition that is furthest behind; None if no partition is behind."""
        return None if self.worst is None else str(self.worst.seen.partition)

    @property
    def state(self) -> str:
        """States other than `OK` as text; `ok` if all partitions are in state `OK`."""
        words = (self._state_text(state, count) for state, count in self.states.items())
        return ", ".join(words) or State.OK.value

    def _state_text(self, state: State, count: int) -> str:
        """Return the text of a state of `count` partitions.

        The text of LOST contains the number of lost records.
        """
        if state is State.LOST:
            place = f" in {plural(count, 'partition')}" if self.partitions > 1 else ""
            return f"{plural(self.lost, 'record')} lost{place}"
        return f"{count:,} {state.value}" if self.partitions > 1 else state.value


def _unread_text(records: int, *, is_exact: bool) -> str:
    return f"{'' if is_exact else 'at most '}{plural(records, 'record')}"


def lag_sum(lags: Iterable[PartitionLag]) -> LagSum:
    """Return the sum of the lag of several partitions."""
    every = list(lags)
    committed = [lag for lag in every if lag.state is not State.NO_COMMIT]
    behind = [lag for lag in committed if lag.seen.left.records]
    ages = [lag.behind_ms for lag in behind if lag.behind_ms is not None]
    rates = [lag.offsets_per_s for lag in committed]
    known_rates = [rate for rate in rates if rate is not None]
    times = [lag.catch_up_s for lag in committed]
    states = [lag.state for lag in every]
    return LagSum(
        partitions=len(every),
        behind=tuple(sorted(lag.seen.partition for lag in behind)),
        worst=max(behind, key=_how_far, default=None),
        records=sum(lag.seen.left.records for lag in behind),
        is_exact=all(lag.seen.left.is_exact for lag in behind),
        behind_ms=max(ages) if ages else None if behind else 0,
        offsets_per_s=sum(known_rates) if known_rates and len(known_rates) == len(rates) else None,
        catch_up_s=_longest(times),
        states={state: states.count(state) for state in _BAD if state in states},
        uncommitted=tuple(
            sorted(lag.seen.partition for lag in every if lag.state is State.NO_COMMIT)
        ),
        lost=sum(lag.lost for lag in every),
    )


def _how_far(lag: PartitionLag) -> tuple[float, int]:
    """Return the age of a partition's oldest unread record, and the number of unread records.

    The age is -inf if it is unknown.
    """
    return -inf if lag.behind_ms is None else lag.behind_ms, lag.seen.left.records


def _longest(times: Sequence[float | None]) -> float | None:
    known_times = [seconds for seconds in times if seconds is not None]
    if any(map(isinf, known_times)) or len(known_times) == len(times):
        return max(known_times, default=None)
    return None


# Words that name the clock by which an age was measured.
_CLOCKS: Final[Mapping[AgeClock | None, str]] = {
    AgeClock.APPEND: " (by append time)",
    AgeClock.LOG_APPEND_TIME: " (by LogAppendTime)",
    AgeClock.CREATE_TIME: " (by create time)",
    None: "",
}

# Minimum age in ms of the oldest unread record at which a sentence also has the record's time.
_DATED_AGE_MS: Final = 7 * 24 * HOUR_MS


def lag_verdict(group: str, lags: Iterable[PartitionLag], zone: str | None = None) -> str:
    """Return a sentence: how far a group is behind, and which partitions are in a bad state.

    At most three partitions without a committed offset are named. The age is that of the oldest
    unread record, and the sentence names the clock of this age. If the group is behind on several
    partitions, the sentence names the worst of them. If the oldest unread record is a week old or
    older, the sentence also has its time, in `zone`.
    """
    every = list(lags)
    total = lag_sum(every)
    if not total.partitions:
        return f"group {group} has no partitions to report"
    without, names = len(total.uncommitted), [str(name) for name in total.uncommitted]
    if without == total.partitions:
        return (
            f"group {group} has no committed offset in {_first_named(names)}; records there are not"
            " counted"
        )
    if total.worst is None:
        read = plural(total.partitions - without, "partition")
        committed = " with a committed offset" if without else ""
        first = f"group {group} has read all of {read}{committed}"
    else:
        unread, age = total.worst.seen.unread, ""
        if total.behind_ms is not None:
            clock = None if unread is None else unread.clock
            age = f" and {duration_text(total.behind_ms / 1000)}{_CLOCKS[clock]}"
        first = f"group {group} is {total.unread}{age} behind on {_where(total)}"
    parts = [first, *_worst_part(total), *_oldest_part(total, zone)]
    if total.catch_up_s is not None and total.behind:
        parts.append(
            "at the current rates it does not catch up"
            if isinf(total.catch_up_s)
            else f"it catches up in {duration_text(total.catch_up_s)}"
        )
    return "; ".join([*parts, *_state_parts(total.states, names)])


def _worst_part(total: LagSum) -> list[str]:
    """Return words for the partition furthest behind; empty if fewer than two are behind."""
    worst = total.worst
    if worst is None or len(total.behind) <= 1:
        return []
    left = worst.seen.left
    unread = _unread_text(left.records, is_exact=left.is_exact)
    age = "" if worst.behind_ms is None else f", {duration_text(worst.behind_ms / 1000)}"
    return [f"worst: {worst.seen.partition}, {unread}{age}"]


def _oldest_part(total: LagSum, zone: str | None) -> list[str]:
    """Return words for the time of the oldest unread record.

    The result is empty if the record is less than a week old, or its time is unknown.
    """
    unread = None if total.worst is None else total.worst.seen.unread
    time_ms = None if unread is None else unread.time_ms
    if time_ms is None or total.behind_ms is None or total.behind_ms < _DATED_AGE_MS:
        return []
    time = f"{time_text(time_ms, zone)} ({zone or 'UTC'})"
    if time_ms < 0:
        time = f"before 1970 (timestamp {time_text(time_ms)})"
    return [f"the oldest unread record is from {time}"]


# Maximum numbers of partitions and of topics that a sentence names.
_NAMED_MAX: Final = 3


def _where(total: LagSum) -> str:
    """Return where a group is behind: the partitions, or their number and their topics."""
    share = f"{len(total.behind):,} of {plural(total.partitions, 'partition')}"
    if len(total.behind) <= _NAMED_MAX:
        named = _listed([str(name) for name in total.behind])
        return f"{named} ({share})" if total.partitions > 1 else named
    topics = sorted({name.topic for name in total.behind})
    if len(topics) > _NAMED_MAX:
        return share
    return f"{share} ({'topic' if len(topics) == 1 else 'topics'} {_listed(topics)})"


def _listed(names: Sequence[str]) -> str:
    """Return names, at least one, as a list in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _first_named(names: Sequence[str]) -> str:
    """Return the names of partitions, at least one; of more than three, also the number of others.

    An example is `t-0, t-1, t-2 and 4 more partitions`.
    """
    shown, others = list(names[:_NAMED_MAX]), len(names) - _NAMED_MAX
    return _listed([*shown, *([plural(others, "more partition")] if others > 0 else [])])


def _state_parts(states: Mapping[State, int], uncommitted: Sequence[str]) -> list[str]:
    """Return words for each bad state; `uncommitted` names the partitions of state NO_COMMIT."""
    parts = []
    for state, count in states.items():
        is_named = state is State.NO_COMMIT
        subject = _first_named(uncommitted) if is_named else plural(count, "partition")
        parts.append(f"{subject} {verb(count, *_BAD[state])}")
    return parts


def lags_verdict(groups: Mapping[str, Sequence[PartitionLag]], zone: str | None = None) -> str:
    """Return a sentence: how many groups are behind, and the lag of the group furthest behind.

    Times in the sentence are in `zone`; None means UTC.
    """
    sums = {group: lag_sum(lags) for group, lags in groups.items()}
    if not sums:
        return "no group has committed offsets"
    if len(sums) == 1:
        (group,) = sums
        return lag_verdict(group, groups[group], zone)
    behind = {group: one for group, one in sums.items() if one.behind}
    if not behind:
        states = _states_of(sums.values())
        first = f"all {plural(len(sums), 'group')} have read everything"
        if State.NO_COMMIT in states:
            first = f"no unread records after the committed offsets of {plural(len(sums), 'group')}"
        return "; ".join([first, *_state_parts(states, _uncommitted_of(sums))])
    furthest = max(behind, key=lambda group: (behind[group].behind_ms or 0, behind[group].records))
    are = verb(len(behind), "is", "are")
    first = (
        f"{len(behind):,} of {plural(len(sums), 'group')} {are} behind, the furthest:"
        f" {lag_verdict(furthest, groups[furthest], zone)}"
    )
    others = {group: one for group, one in sums.items() if group != furthest}
    parts = _state_parts(_states_of(others.values()), _uncommitted_of(others))
    return "; ".join([first, *(f"of other groups {part}" for part in parts)])


def _uncommitted_of(sums: Mapping[str, LagSum]) -> list[str]:
    """Return the partitions without a committed offset of several groups, with their groups."""
    return [f"{name} (group {group})" for group, one in sums.items() for name in one.uncommitted]


def _states_of(sums: Iterable[LagSum]) -> dict[State, int]:
    """Return the number of partitions in each state, summed up over several groups."""
    counts: Counter[State] = Counter()
    for one in sums:
        counts.update(one.states)
    return {state: counts[state] for state in _BAD if counts[state]}
