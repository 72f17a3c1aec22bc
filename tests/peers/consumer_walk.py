"""Random steps of a group's members (a walk): a seed decides each step.

Two brokers must give the same responses to the same walk. Members of the consumer protocol choose
their ids, but members of the classic protocol get ids that differ between brokers. So walks with
members of both protocols use only the assignor `range`, whose order does not depend on such ids:
the ids that members choose sort before them.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tests.peers.consumer_talk import ROUTES, STOPS, ConsumerTalk

from tidelog.protocol.messages import LIST_GROUPS, SYNC_GROUP
from tidelog.protocol.messages.classic_groups import (
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidelog.protocol.messages.group_records import (
    ASSIGNMENT,
    SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
)
from tidelog.protocol.messages.shared import GroupProtocol, TopicPartitions

# Ids of members of the consumer protocol. `!` sorts before all characters of ids that brokers
# create.
CONSUMERS = ("!a", "!b", "!c", "!d", "!e")
SEATS: Mapping[str, str | None] = {
    **dict.fromkeys(CONSUMERS),
    "!d": "seat d",
    "!e": "seat e",
    "c1": "seat 1",
    "c2": "seat 2",
    "c3": None,
}
CLASSICS = ("c1", "c2", "c3")
TOPICS = (
    [ROUTES],
    [STOPS],
    [ROUTES, STOPS],
    [ROUTES, STOPS],
    ["nowhere"],
    [ROUTES, "nowhere"],
)
WEIGHTS = {
    "enter": 3,
    "beat": 12,
    "beat_plainly": 3,
    "beat_late": 2,
    "lose_an_answer": 2,
    "subscribe": 2,
    "leave": 2,
    "leave_for_a_while": 1,
    "say_nonsense": 1,
    "commit": 3,
    "fetch": 1,
}
CLASSIC_WEIGHTS = {
    "classic_join": 3,
    "classic_sync": 4,
    "classic_beat": 5,
    "classic_leave": 1,
    "classic_commit": 1,
}
STEPS = 60
# Error codes after which a walk forgets the member: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
GONE = (25, 82)


class Walk:
    """One broker's side of a walk."""

    def __init__(self, talk: ConsumerTalk, seed: int, *, is_mixed: bool) -> None:
        self.talk = talk
        self._random = Random(seed)
        self._is_mixed = is_mixed
        weights = WEIGHTS | CLASSIC_WEIGHTS if is_mixed else WEIGHTS
        self._actions: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in weights]
        self._weights = list(weights.values())
        # Members of the classic protocol by name: id, generation, assigned partitions.
        self._classic: dict[str, tuple[str, int, dict[str, list[int]]]] = {}
        self._draw()

    def step(self) -> str:
        """Take a step, then describe the group; return the step's name."""
        self._draw()
        action = self._random.choices(self._actions, self._weights)[0]
        action()
        self.talk.describe_consumers()
        self.talk.listed()
        return f"{action.__name__[1:]} {self._name} {self._other} {self._topics} {self._number}"

    def _draw(self) -> None:
        """Draw all values that an action may need, so that both walks draw the same values."""
        self._name = self._random.choice(CONSUMERS)
        self._other = self._random.choice(CLASSICS)
        self._topics = self._random.choice(TOPICS)
        self._number = self._random.randrange(6)
        drawn = self._random.choice([None, None, "uniform", "range"])
        self._assignor = "range" if self._is_mixed else drawn

    # -- members of the consumer protocol ----------------------------------------------------

    @property
    def _seat(self) -> dict[str, object]:
        seat = SEATS[self._name]
        return {} if seat is None else {"instance_id": seat}

    @property
    def _owning(self) -> dict[str, object]:
        return {"topic_partitions": self.talk.owned.get(self._name, [])}

    def _say(self, more: Mapping[str, object], epoch: int | None = None) -> None:
        """Send a heartbeat of a known member, with its tracked epoch or with a given `epoch`."""
        if self._name not in self.talk.epochs:
            return
        if epoch is None:
            self.talk.beat(self._name, **(self._seat | dict(more)))
        else:
            self.talk.send_beat(self._name, epoch, self._seat | dict(more))

    def _enter(self) -> None:
        asked = self._seat | {"server_assignor": self._assignor}
        self.talk.enter(self._name, *self._topics, **asked)

    def _beat(self) -> None:
        self._say(self._owning)

    def _beat_plainly(self) -> None:
        self._say({})

    def _beat_late(self) -> None:
        self._say(self._owning, max(self.talk.epochs.get(self._name, 1) - 1, 1))

    def _lose_an_answer(self) -> None:
        self._say(self._owning, self.talk.epochs.get(self._name))

    def _subscribe(self) -> None:
        owning = self._owning if self._number % 2 else {}
        self._say(owning | {"subscribed_topic_names": self._topics})

    def _leave(self) -> None:
        self._say({}, -1)
        self.talk.epochs.pop(self._name, None)

    def _leave_for_a_while(self) -> None:
        self._say({}, -2)

    def _say_nonsense(self) -> None:
        seat: dict[str, object] = {"instance_id": "seat d"} if self._number % 2 else {}
        self.talk.send_beat(self._name, (-1, -2, 0, 5, 1, -7)[self._number], seat)

    def _commit(self) -> None:
        epoch = self.talk.epochs.get(self._name, -1) + (0, 0, -1, -1, -2, 1)[self._number]
        topic, partition = (ROUTES, STOPS)[self._number % 2], self._number % 3
        self.talk.commit(self._number, self._name, epoch, topic=topic, partition=partition)

    def _fetch(self) -> None:
        if self._number == 0:
            self.talk.fetch_as(None, -1)
        else:
            epoch = self.talk.epochs.get(self._name, -1) - (self._number == 1)
            self.talk.fetch_as(self._name, epoch)

    # -- members of the classic protocol -----------------------------------------------------

    def _kind(self) -> str | None:
        """Return the group's type and state; the response is not recorded."""
        found = self.talk.client("a").ask(LIST_GROUPS, 5, ListGroupsRequest()).groups
        group = next((one for one in found if one.group_id == self.talk.group), None)
        if group is None:
            return None
        return f"{group.group_type.lower()} {group.group_state}"

    def _may_join(self) -> bool:
        """Whether a join gets a response at once, because no other member has to rejoin first."""
        kind = self._kind() or ""
        in_use = kind.startswith("consumer") and not kind.endswith("Empty")
        return in_use or not self._classic.keys() - {self._other}

    def _classic_join(self) -> None:
        if not self._may_join():
            return
        member_id, _, owned = self._classic.get(self._other, ("", -1, {}))
        parts = [OwnedPartitions(topic=name, partitions=got) for name, got in owned.items()]
        said = ConsumerProtocolSubscription(topics=self._topics, owned_partitions=parts)
        protocol = GroupProtocol(name="range", metadata=SUBSCRIPTION.write(1, said))
        seat = SEATS[self._other]
        answer = self.talk.join(member_id, protocols=[protocol], group_instance_id=seat)
        if answer.error_code:
            self._classic.pop(self._other, None)
        else:
            self._classic[self._other] = answer.member_id, answer.generation_id, owned

    def _classic_sync(self) -> None:
        if self._other not in self._classic:
            return
        member_id, generation, _ = self._classic[self._other]
        is_leader = self._kind() == "classic CompletingRebalance"
        asked = SyncGroupRequest(
            group_id=self.talk.group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=SEATS[self._other],
            protocol_type="consumer",
            protocol_name="range",
            assignments=[all_routes(member_id)] if is_leader else [],
        )
        answer = self.talk.client("a").ask(SYNC_GROUP, 5, asked)
        owned = assigned_by(answer)
        self.talk.told.append((answer.error_code, answer.protocol_name, owned))
        if answer.error_code in GONE:
            del self._classic[self._other]
        elif not answer.error_code:
            self._classic[self._other] = member_id, generation, owned

    def _classic_beat(self) -> None:
        if self._other not in self._classic:
            return
        member_id, generation, _ = self._classic[self._other]
        code = self.talk.heartbeat_code(member_id, generation, SEATS[self._other])
        self.talk.told.append(code)
        if code in GONE:
            del self._classic[self._other]

    def _classic_commit(self) -> None:
        if self._other in self._classic:
            member_id, generation, _ = self._classic[self._other]
            late = generation - self._number % 2
            seat = SEATS[self._other]
            self.talk.commit(self._number, member_id, late, topic=ROUTES, instance_id=seat)

    def _classic_leave(self) -> None:
        if self._other in self._classic:
            member_id, _, _ = self._classic.pop(self._other)
            seat = SEATS[self._other]
            self.talk.leave(("" if seat and self._number % 2 else member_id, seat))


def all_routes(member_id: str) -> SyncGroupRequestAssignment:
    """Return the assignment for the only member."""
    part = TopicPartitions(topic=ROUTES, partitions=[0, 1, 2, 3, 4])
    data = ASSIGNMENT.write(1, ConsumerProtocolAssignment(assigned_partitions=[part]))
    return SyncGroupRequestAssignment(member_id=member_id, assignment=data)


def assigned_by(answer: SyncGroupResponse) -> dict[str, list[int]]:
    """Return partitions by topic; the order of topics does not matter."""
    data = bytes(answer.assignment)
    if not data:
        return {}
    parts: Sequence[TopicPartitions] = ASSIGNMENT.read(data)[1].assigned_partitions
    return {part.topic: list(part.partitions) for part in sorted(parts, key=lambda one: one.topic)}


def walk_differs(seed: int, places: tuple[str, str], *, is_mixed: bool) -> str:
    """Return the first difference of two brokers' walks, and all steps up to it; "" if none."""
    kind = "mixed" if is_mixed else "plain"
    talks = [ConsumerTalk(bootstrap, f"{kind} walk {seed}") for bootstrap in places]
    walks = [Walk(talk, seed, is_mixed=is_mixed) for talk in talks]
    done: list[str] = []
    try:
        for _ in range(STEPS):
            done.append([walk.step() for walk in walks].pop())
            theirs, ours = (talk.told[-5:] for talk in talks)
            if theirs != ours:
                steps = "\n".join(done)
                return f"{kind} walk {seed}:\n{steps}\nKafka: {theirs}\nOurs:  {ours}"
    finally:
        for talk in talks:
            talk.close()
    return ""
