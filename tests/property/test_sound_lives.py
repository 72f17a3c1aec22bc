"""A log is valid at any moment; after a clean stop, a check finds nothing that makes it invalid."""

import random
from dataclasses import replace

import pytest
from tests.faults import Keep, SeededEnv, reopen, seeded_env
from tests.worlds.directories.logs import PATH, WRITABLE, batch, new_records
from tests.worlds.directories.sick import CONFIG, T0, counting, look
from tests.worlds.repetition import rarely

from tidelog.errors import RequestError
from tidelog.storage import log_files
from tidelog.storage.checks import Severity
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.types import Codec

LIVES = 60
STEPS = 25


class Life:
    """A directory with one log, and steps drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(f"life {seed}")
        self.env = seeded_env(seed)
        self.sequences = {7: 0, 8: 0}
        self.directory = LogDir.open(PATH, env=self.env, options=WRITABLE)
        config = {
            **CONFIG,
            "internal.segment.bytes": self.source.choice(("900", "3000", "100000")),
            "index.interval.bytes": self.source.choice(("0", "200", "4096")),
            "retention.ms": self.source.choice(("-1", "40")),
        }
        self.directory.create_topic("t", config=config)

    @property
    def log(self) -> Log:
        return self.directory.log("t", 0)

    def step(self) -> None:
        self.env.clock.advance(self.source.choice((0, 0, 1, 30)))
        kind = self.source.random()
        if kind < 0.45:
            self.append()
        elif kind < 0.7:
            self.transact()
        elif kind < 0.76:
            self.log.roll()
        elif kind < 0.81:
            self.log.truncate_to(self.source.randint(0, self.log.log_end_offset))
        elif kind < 0.86:
            self.log.delete_records(self.source.randint(0, self.log.log_end_offset))
        elif kind < 0.9:
            self.log.apply_retention()
        else:
            self.start_again()

    def append(self) -> None:
        codec = self.source.choice(list(Codec))
        times = [T0 + self.source.randrange(5_000) for _ in range(self.source.randint(1, 4))]
        values = b"v" * self.source.randrange(200)
        self.log.append(new_records(times, values), codec=codec)

    def transact(self) -> None:
        producer = self.source.choice((7, 8))
        try:
            if self.source.random() < 0.5:
                commit = self.source.random() < 0.5
                self.log.end_transaction(
                    producer_id=producer, producer_epoch=0, coordinator_epoch=1, commit=commit
                )
                return
            data = batch(
                [T0],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=self.sequences[producer],
                transactional=True,
            )
            self.log.append_batches(data)
            self.sequences[producer] += 1
        except RequestError:
            last = self.log.producer_states().producers.get(producer)
            self.sequences[producer] = 0 if last is None else last.last_sequence + 1

    def start_again(self) -> None:
        """Start after a clean stop, an abandoned process, or a crash that lost unsynced changes."""
        how = self.source.choice(("close", "abandon", "crash"))
        if how == "close":
            self.directory.close()
            assert closed_findings(self.env) == []
        else:
            self.directory.abandon()
        if how == "crash":
            self.env = crashed(self.env)
        self.directory = LogDir.open(PATH, env=self.env, options=WRITABLE)


def closed_findings(env: SeededEnv) -> list[str]:
    """Return the findings that make a directory invalid after a clean stop.

    Findings about zone maps are left out: if recovery dropped a zone map, it is rebuilt only later.
    """
    found = counting(look(env))
    return [str(each) for each in found if not each.path.endswith(log_files.ZONES_SUFFIX)]


def crashed(env: SeededEnv) -> SeededEnv:
    """Return the disk after a power loss that keeps only synced changes."""
    disk = reopen(env.files.crash(Keep.SYNCED), clock=env.clock)
    return replace(env, files=disk)


@pytest.mark.parametrize("first", [0, 10, 20, *map(rarely, range(30, LIVES, 10))])
def test_a_life_leaves_no_finding(first: int) -> None:
    for seed in range(first, first + 10):
        life = Life(seed)
        for number in range(STEPS):
            life.step()
            found = [str(each) for each in look(life.env) if each.severity is Severity.ERROR]
            assert found == [], (seed, number)
        life.directory.close()
        assert closed_findings(life.env) == [], seed
