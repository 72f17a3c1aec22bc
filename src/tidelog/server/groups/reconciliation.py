"""A consumer group member's next step towards its target assignment.

A member that must give up partitions stays in its epoch until it no longer reports them as owned
(UNREVOKED_PARTITIONS). In the new epoch it waits for partitions that other members still own
(UNRELEASED_PARTITIONS). With nothing missing it is STABLE. So a partition never has two owners.

Source: Kafka 4.3's reconciliation; KIP-848.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.modern_group import Assigned, MemberAssignment, MemberState, Target
from tidelog.server.runtime.errors import Refusal

_NONE: Final[frozenset[int]] = frozenset()


_NOTHING: Final[Mapping[int, int]] = {}


# What a member says that it owns, by topic; None where it doesn't say.
OwnedByTopic: TypeAlias = "dict[UUID, frozenset[int]] | None"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is made with.

    Attributes:
        target_epoch: Epoch of the target assignment.
        target: What the member is to have.
        topic_ids: Topics that it reads: others go even where the target still has them.
        owned: What it says that it owns, None where it says nothing.
        owners: Who has which of a topic's partitions, this member included.
        has_changed: Whether its subscription changes now.
    """

    target_epoch: int
    target: Target
    topic_ids: Set[UUID]
    owned: OwnedByTopic
    owners: Callable[[UUID], Mapping[int, str]]
    has_changed: bool


def next_assignment(assignment: MemberAssignment, step: Step) -> MemberAssignment:
    """Where the member stands after this step; the same place where it can't go on.

    Raises:
        Refusal: Nobody here knows the state that its records say.
    """
    if assignment.state is MemberState.UNKNOWN:
        if step.owned is None or step.owned:
            raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is not known here")
        return _towards_target(assignment, step, step.target_epoch)
    waits = assignment.state is MemberState.UNREVOKED_PARTITIONS and _owns(
        step.owned, assignment.revoking
    )
    is_there = assignment.state is MemberState.STABLE and assignment.epoch == step.target_epoch
    if waits or is_there:
        return _without_unsubscribed(assignment, step) if step.has_changed else assignment
    return _towards_target(assignment, step, assignment.epoch)


def _owns(owned: OwnedByTopic, revoked: Assigned) -> bool:
    """Whether the member may still have some of this; who says nothing may."""
    if owned is None:
        return True
    return any(not revoked.get(topic, {}).keys().isdisjoint(part) for topic, part in owned.items())


def _without_unsubscribed(assignment: MemberAssignment, step: Step) -> MemberAssignment:
    """Give up topics that are not read any more, without waiting for a new target."""
    unsubscribed = {
        topic: part for topic, part in assignment.assigned.items() if topic not in step.topic_ids
    }
    if not unsubscribed:
        return assignment
    remaining = {
        topic: part for topic, part in assignment.assigned.items() if topic not in unsubscribed
    }
    revoking = {topic: dict(part) for topic, part in assignment.revoking.items()}
    for topic, part in unsubscribed.items():
        revoking.setdefault(topic, {}).update(part)
    if _owns(step.owned, revoking):
        return assignment.moved(
            assignment.epoch, MemberState.UNREVOKED_PARTITIONS, remaining, revoking
        )
    # It had given them up before it said that it does not read them.
    return assignment.moved(assignment.epoch, assignment.state, remaining, assignment.revoking)


def _towards_target(assignment: MemberAssignment, step: Step, epoch: int) -> MemberAssignment:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    pending: dict[UUID, list[int]] = {}
    is_unreleased = False
    for topic in {**step.target, **assignment.assigned}:
        target = step.target.get(topic, _NONE) if topic in step.topic_ids else _NONE
        has = assignment.assigned.get(topic, _NOTHING)
        if has.keys() == target:
            # Nearly always, as the group changes: what a member keeps.
            _put(assigned, topic, dict(has))
            continue
        _put(assigned, topic, {number: since for number, since in has.items() if number in target})
        _put(revoking, topic, {n: since for n, since in has.items() if n not in target})
        missing = sorted(target - has.keys())
        free = _free(missing, step.owners(topic), assignment.revoking.get(topic, _NOTHING))
        is_unreleased |= len(free) < len(missing)
        if free:
            pending[topic] = free
    if revoking and _owns(step.owned, revoking):
        return assignment.moved(epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    for topic, numbers in pending.items():
        assigned.setdefault(topic, {}).update(dict.fromkeys(numbers, step.target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_unreleased else MemberState.STABLE
    return assignment.moved(step.target_epoch, state, assigned, {})


def _put(parts: dict[UUID, dict[int, int]], topic: UUID, part: dict[int, int]) -> None:
    if part:
        parts[topic] = part


def _free(
    numbers: Iterable[int], owners: Mapping[int, str], revoking: Mapping[int, int]
) -> list[int]:
    """The partitions that nobody else has; what the member itself gives up is its own."""
    return [number for number in numbers if number not in owners or number in revoking]
