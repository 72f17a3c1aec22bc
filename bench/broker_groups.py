"""Section of the broker's benchmark: duration of a change of a group with 50 members.

Each round creates a new group of 50 members. Then a 51st member joins and leaves several times.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final

from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import GROUP_KEY, find_coordinator

from bench.broker_cells import Series
from bench.broker_group_load import BEAT_MS, ClassicMember, ConsumerMember, Member, Members
from bench.broker_pair import Brokers, Pair, figure
from bench.broker_servers import Served, address_of, cpu_s, memory_bytes
from bench.harness import Case

MEMBERS: Final = 50
PARTITIONS: Final = 100
TOPIC: Final = "shared-out"
KINDS: Final[dict[str, type[ClassicMember] | type[ConsumerMember]]] = {
    "classic": ClassicMember,
    "consumer": ConsumerMember,
}
NOTE: Final = (
    f"{PARTITIONS} partitions; members send a heartbeat every {BEAT_MS} ms; brokers don't wait for"
    " more members before they change a group"
)


class Rounds:
    """Figures of one broker and one protocol, by round."""

    def __init__(self, server: Served, kind: str, changes: int) -> None:
        self._server, self._kind, self._changes = server, kind, changes
        self._number = 0
        self.start, self.start_cpu = Series(), Series()
        self.joined, self.left, self.change_cpu = Series(), Series(), Series()
        self.memory = Series()

    def run(self) -> float:
        """Run a round; return the ms until the first 50 members are settled."""
        self._number += 1
        group = f"{self._kind}-{self._number}"
        with RawClient(self._server.bootstrap) as client:
            find_coordinator(client, group, GROUP_KEY)
        members = Members(PARTITIONS)
        first = [self._member(group) for _ in range(MEMBERS)]
        took_ms, cpu_ms = self._timed(lambda: _settle(members, *first))
        self.start_cpu.add(cpu_ms)
        self._change(members, group)
        self.memory.add(memory_bytes(self._server.pid) / 1e6)
        members.disband()
        return self.start.add(took_ms)

    def _member(self, group: str) -> Member:
        return KINDS[self._kind](address_of(self._server), group, TOPIC, PARTITIONS)

    def _change(self, members: Members, group: str) -> None:
        joined, left, cpu = list[float](), list[float](), list[float]()
        for _ in range(self._changes):
            one = self._member(group)
            took_ms, cpu_ms = self._timed(partial(_settle, members, one))
            joined.append(took_ms)
            cpu.append(cpu_ms)
            took_ms, cpu_ms = self._timed(partial(_part, members, one))
            left.append(took_ms)
            cpu.append(cpu_ms)
        self.joined.add(median(joined))
        self.left.add(median(left))
        self.change_cpu.add(median(cpu))

    def _timed(self, action: Callable[[], None]) -> tuple[float, float]:
        """Run an action; return the elapsed time and the broker's CPU time, in ms."""
        before, start = cpu_s(self._server.pid), time.perf_counter()
        action()
        wall_s = time.perf_counter() - start
        return wall_s * 1e3, (cpu_s(self._server.pid) - before) * 1e3


def _settle(members: Members, *joining: Member) -> None:
    members.join(*joining)
    members.settle()


def _part(members: Members, leaving: Member) -> None:
    members.leave(leaving)
    members.settle()


def groups(brokers: Brokers) -> Iterator[Case]:
    """Yield the cases of both protocols."""
    pair = brokers.pair
    for server in pair.servers():
        pair.topics(server).create(TOPIC, PARTITIONS)
    for kind in KINDS:
        yield from _cases(pair, kind, brokers.size.rebalances)


def _cases(pair: Pair, kind: str, changes: int) -> Iterator[Case]:
    ours, rival = (Rounds(server, kind, changes) for server in pair.servers())
    group = f"group of {MEMBERS} members, {kind} protocol"
    unit, goal = "ms of wall time", "<= 1.0"
    yield figure(f"{group}: the group starts", unit, ours.run, rival.run, goal=goal, note=NOTE)
    joins = (ours.joined, rival.joined)
    yield figure(f"{group}: a member joins", unit, *joins, goal=goal, note=NOTE)
    yield figure(f"{group}: a member leaves", unit, ours.left, rival.left, goal=goal, note=NOTE)
    starts, changed = (ours.start_cpu, rival.start_cpu), (ours.change_cpu, rival.change_cpu)
    yield figure(f"CPU of the broker, {group}: the group starts", "ms of CPU", *starts)
    yield figure(f"CPU of the broker, {group}: a member joins or leaves", "ms of CPU", *changed)
    yield figure(f"memory with a {group}", "MB", ours.memory, rival.memory)
