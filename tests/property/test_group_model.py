"""Invariants of groups under any behavior of members, time and crashes.

A generation has one assignment, which every syncing member gets. Only members of the generation can
commit. Committed offsets stay. In the end all members that follow the protocol have an assignment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.worlds.brokers.groups import GROUP, REBALANCE_MS, SESSION_MS, World

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import ClassicGroup, GroupState
from tidelog.server.groups.requests import JoinResult, MemberRef, SyncRequest, SyncResult
from tidelog.server.runtime.reply import Reply

MEMBERS_MAX = 6
SETTLING_ROUNDS = 60


@dataclass(eq=False)
class Client:
    """A member's own view.

    Attributes:
        instance_id: Its instance id, if it is static.
        member_id: Its id from the coordinator; empty until the coordinator has assigned an id.
        joined: The generation in which the member believes itself to be; None if it must join.
        has_assignment: Whether it has the assignment of that generation.
    """

    instance_id: str | None
    member_id: str = ""
    joined: JoinResult | None = None
    join: Reply[JoinResult] | None = None
    sync: Reply[SyncResult] | None = None
    has_assignment: bool = False
    seen: list[JoinResult] = field(default_factory=list)

    def forget(self, *, whole: bool) -> None:
        """Make the member join again; `whole` also drops its id, which the coordinator refused."""
        self.joined, self.has_assignment = None, False
        if whole:
            self.member_id = ""


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(group_initial_rebalance_delay_ms="300")
        self.clients: list[Client] = []
        self.tokens: dict[int, bytes] = {}
        self.committed: int | None = None
        self.offsets = 0
        self.instances = 0

    @property
    def group(self) -> ClassicGroup | None:
        found = self.world.found
        assert found is None or isinstance(found, ClassicGroup)
        return found

    # -- members -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < MEMBERS_MAX)
    @rule(is_static=st.booleans())
    def come(self, is_static: bool) -> None:
        self.instances += is_static
        self.clients.append(Client(f"seat {self.instances}" if is_static else None))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), prefers=st.sampled_from(["range", "sticky"]))
    def ask_to_join(self, data: st.DataObject, prefers: str) -> None:
        self.join(self.choose(data), prefers)

    def join(self, client: Client, prefers: str = "range") -> None:
        if client.join is not None or client.sync is not None:
            return
        client.forget(whole=False)
        names = sorted(["range", "sticky"], key=lambda name: name != prefers)
        client.join = self.world.ask_join(
            client.member_id,
            client.instance_id,
            protocols=[(name, b"") for name in names],
            needs_member_id=True,
        )
        self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def ask_to_sync(self, data: st.DataObject) -> None:
        self.sync(self.choose(data))

    def sync(self, client: Client) -> None:
        joined = client.joined
        if joined is None or client.sync is not None or client.join is not None:
            return
        token = f"{joined.generation} {self.world.written}".encode()
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        members = [one.member_id for one in joined.members] if leads else []
        client.sync = self.world.members.sync(
            SyncRequest(
                group_id=GROUP,
                member_id=joined.member_id,
                generation=joined.generation,
                instance_id=client.instance_id,
                protocol_name=joined.protocol_name,
                assignments=tuple((name, token) for name in members),
            )
        )
        self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.heartbeat(self.choose(data))

    def heartbeat(self, client: Client) -> None:
        joined = client.joined
        if joined is None or client.join is not None or client.sync is not None:
            return
        ref = MemberRef(joined.member_id, client.instance_id)
        self.obey(client, self.world.members.heartbeat(GROUP, ref, joined.generation))

    def obey(self, client: Client, code: ErrorCode) -> None:
        """React to an error as a client does."""
        if code in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}:
            client.forget(whole=False)
        elif code is not ErrorCode.NONE:
            client.forget(whole=True)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), by_instance=st.booleans())
    def leave(self, data: st.DataObject, by_instance: bool) -> None:
        client = self.choose(data)
        self.clients.remove(client)
        if client.member_id:
            named = "" if by_instance and client.instance_id else client.member_id
            self.world.members.leave(GROUP, [MemberRef(named, client.instance_id)])
        self.hear()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), comes_back=st.booleans())
    def crash(self, data: st.DataObject, comes_back: bool) -> None:
        """Silence a member; a static one may return without its id."""
        client = self.choose(data)
        self.clients.remove(client)
        if comes_back and client.instance_id is not None:
            self.clients.append(Client(client.instance_id))

    @precondition(lambda self: self.clients)
    @rule(silent=st.integers(0, 2 * MEMBERS_MAX))
    def everybody_but_one_does_its_part(self, silent: int) -> None:
        self.play([one for at, one in enumerate(self.clients) if at != silent])
        self.world.wait(SESSION_MS // 3)
        self.hear()

    def play(self, clients: Sequence[Client]) -> None:
        """Let each client take its next step."""
        for client in clients:
            if client.joined is None:
                self.join(client)
            elif not client.has_assignment:
                self.sync(client)
            else:
                self.heartbeat(client)

    # -- offsets -----------------------------------------------------------------------------

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit as a member in any generation; only the current generation is accepted."""
        client = self.choose(data)
        if not client.seen:
            return
        self.commit_as(data.draw(st.sampled_from(client.seen)))

    def commit_as(self, member: JoinResult) -> None:
        self.offsets += 1
        code = self.world.commit(self.offsets, member)
        group = self.group
        generation = -1 if group is None else group.generation
        if code is ErrorCode.NONE:
            assert member.generation == generation, "a commit of another generation was taken"
            assert group is not None
            assert member.member_id in group.members, "a commit of a fenced member was taken"
            self.committed = self.offsets

    @rule()
    def commit_without_membership(self) -> None:
        self.offsets += 1
        group = self.group
        is_free = group is None or group.is_empty
        code = self.world.commit(self.offsets)
        assert is_free or code is ErrorCode.UNKNOWN_MEMBER_ID
        if code is ErrorCode.NONE:
            self.committed = self.offsets

    # -- the world ---------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 100, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)
        self.hear()

    @rule()
    def restart(self) -> None:
        self.world.restart()
        for client in self.clients:
            if client.join is not None or client.sync is not None:  # lost with the connection
                client.join = client.sync = None
                client.forget(whole=False)
        group = self.group
        known = 0 if group is None else group.generation
        # A crash loses generations that were not in the log, so their numbers are used again.
        self.tokens = {at: token for at, token in self.tokens.items() if at <= known}
        self.hear()

    @rule(is_broken=st.booleans())
    def disk(self, is_broken: bool) -> None:
        self.world.refuse_records(refuse=is_broken)

    # -- responses to clients ----------------------------------------------------------------

    def choose(self, data: st.DataObject) -> Client:
        return self.clients[data.draw(st.integers(0, len(self.clients) - 1))]

    def hear(self) -> None:
        for client in self.clients:
            if client.join is not None and client.join.is_done:
                said, client.join = client.join.value, None
                self.hear_join(client, said)
            if client.sync is not None and client.sync.is_done:
                answer, client.sync = client.sync.value, None
                self.hear_sync(client, answer)

    def hear_join(self, client: Client, said: JoinResult) -> None:
        if said.code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = said.member_id
        elif said.code is ErrorCode.NONE:
            client.joined, client.member_id = said, said.member_id
            client.seen.append(said)
        else:
            self.obey(client, said.code)

    def hear_sync(self, client: Client, said: SyncResult) -> None:
        joined = client.joined
        if said.code is not ErrorCode.NONE or joined is None:
            self.obey(client, said.code)
            return
        client.has_assignment = True
        if said.assignment:
            assert said.assignment.split()[0] == str(joined.generation).encode()
            known = self.tokens.setdefault(joined.generation, said.assignment)
            assert said.assignment == known, "two assignments in one generation"

    # -- invariants --------------------------------------------------------------------------

    @invariant()
    def offsets_stay(self) -> None:
        assert self.world.committed == self.committed

    @invariant()
    def books_are_straight(self) -> None:
        group = self.group
        if group is None:
            return
        members = group.members.values()
        assert group.awaiting_join == sum(member.join is not None for member in members)
        assert group.metadata_bytes == sum(member.metadata_bytes for member in members)
        assert (group.leader in group.members) == bool(group.members)
        assert group.pending_sync <= set(group.members)
        assert not set(group.pending) & set(group.members)
        static = {m.instance_id: m.member_id for m in members if m.instance_id is not None}
        assert all(group.static_member(name) == found for name, found in static.items())
        if group.members:
            assert group.state is not GroupState.EMPTY
        if group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.members
            assert all(group.protocol_name in dict(member.protocols) for member in members)
            assert all(group.supports("consumer", member.protocols) for member in members)

    def teardown(self) -> None:
        """Assert that members that follow the protocol get an assignment."""
        self.disk(is_broken=False)
        for _ in range(SETTLING_ROUNDS):
            self.play(self.clients)
            self.world.wait(SESSION_MS // 2)
            self.hear()
            if all(client.has_assignment for client in self.clients):
                break
        for client in self.clients:
            assert client.has_assignment, f"{client} never got an assignment"
            for member in client.seen:
                self.commit_as(member)
        self.offsets_stay()


TestGroupMachine = GroupMachine.TestCase
