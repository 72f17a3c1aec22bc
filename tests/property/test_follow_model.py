"""After any history of a leader and its standby, the standby gets the leader's records.

There is one exception: the leader has lost its newest records, and written no others since. Then
the standby keeps these records.

The leader appends records, stops, loses its newest records, and deletes its oldest records. The
standby stops, deletes records, is promoted for a while, and follows again. A leader epoch may occur
twice here, which no controller would allow.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults import SeededEnv, seeded_env
from tests.unit.standby.test_follow import follow, standby_dir
from tests.worlds.clusters.fake_leader import FakeLeader, catch_up

from tidelog.storage.log.log import Log
from tidelog.types import NewRecord

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "lose", "delete", "restart", "follow", "promote", "forget"]),
        st.integers(0, 5),
    ),
    max_size=25,
)


@dataclass
class Life:
    leader: FakeLeader = field(default_factory=FakeLeader)
    env: SeededEnv = field(default_factory=lambda: seeded_env(3))
    count: int = 0

    def __post_init__(self) -> None:
        self.leader.create()
        self.follow(0)

    def records(self, amount: int) -> list[NewRecord]:
        self.count += 1
        return [NewRecord(value=b"%d-%d" % (self.count, n), timestamp=1) for n in range(amount + 1)]

    def put(self, amount: int) -> None:
        self.leader.log().append(self.records(amount), batch_bytes=20 if amount > 3 else 1 << 20)

    def lose(self, amount: int) -> None:
        log = self.leader.log()
        log.truncate_to(max(log.log_end_offset - amount, log.log_start_offset))
        self.leader.restart()

    def delete(self, amount: int) -> None:
        log = self.leader.log()
        log.deleter.advance_start(min(log.log_start_offset + amount, log.log_end_offset))

    def restart(self, _amount: int) -> None:
        self.leader.restart()

    def promote(self, amount: int) -> None:
        with standby_dir(self.env) as directory:
            directory.log("t", 0).append(self.records(amount))

    def forget(self, amount: int) -> None:
        with standby_dir(self.env) as directory:
            log = directory.log("t", 0)
            log.deleter.advance_start(min(log.log_start_offset + amount, log.log_end_offset))

    def follow(self, _amount: int) -> None:
        if not self.agrees():
            self.put(0)
            assert self.agrees()

    def agrees(self) -> bool:
        """Follow; return whether both have the same records.

        If the records differ, assert that the standby has more records and has dropped none.
        """
        with follow(self.leader, self.env) as follower:
            (copy,) = follower.copies.values()
            before = records_from(copy.log, copy.log.log_start_offset)
            try:
                catch_up(follower)
            finally:
                self.env.clock.advance(1000)
            if follower.problems:
                assert "The local records stay" in str(copy.problem)
                assert copy.log.log_end_offset > self.leader.log().log_end_offset
                assert records_from(copy.log, copy.log.log_start_offset) == before
                return False
            self.compare(copy.log, self.leader.log())
            return True

    def compare(self, mine: Log, theirs: Log) -> None:
        start = max(mine.log_start_offset, theirs.log_start_offset)
        if theirs.log_start_offset < theirs.log_end_offset:
            assert mine.log_end_offset == theirs.log_end_offset
        if start < mine.log_end_offset:
            assert records_from(mine, start) == records_from(theirs, start)


def records_from(log: Log, start: int) -> list[tuple[int, int, bytes | None]]:
    return [(r.offset, r.timestamp, r.value) for r in log.records(start)]


@examples(150)
@given(STEPS)
def test_the_standby_equals_its_model(steps: list[tuple[str, int]]) -> None:
    life = Life()
    for name, amount in [*steps, ("follow", 0)]:
        getattr(life, name)(amount)


def test_a_standby_that_is_far_ahead() -> None:
    life = Life()
    for name, amount in [("put", 1), ("follow", 0), ("promote", 5), ("lose", 2), ("follow", 0)]:
        getattr(life, name)(amount)
