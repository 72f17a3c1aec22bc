"""A directory on a `DamageFileSystem`, and a store in memory, for the tests of tiers."""

from dataclasses import dataclass, field, replace

from tests.faults import DamageFileSystem, SeededEnv, seeded_env
from tests.unit.storage.tiers.fake_store import URL, FakeStore
from tests.worlds.directories.logs import PATH, SMALL, TOPIC, WRITABLE

from tidelog.env import Env
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.tier.tier_files import TierFiles, TierOptions
from tidelog.storage.tier_manager.mover import MoveOptions, MoveReport, tier_partition
from tidelog.types import NewRecord, TopicPartition

NAME = TopicPartition(TOPIC, 0)
TIERED = {
    **SMALL,
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
    "remote.storage.enable": "true",
    "tidelog.tier.url": URL,
    "file.delete.delay.ms": "0",
}
# Settings with which retention may delete the local files of a segment once it is in the tier.
EAGER = {**TIERED, "local.retention.bytes": "0"}


def tier_env(env: Env, options: TierOptions) -> Env:
    """Return an Env whose files read tiers with these options."""
    return replace(env, files=TierFiles(env.files, options))


@dataclass
class Tiered:
    """A directory with one tiered topic, and its store."""

    base: SeededEnv = field(default_factory=lambda: seeded_env(1))
    store: FakeStore = field(default_factory=FakeStore)
    directory: LogDir = field(init=False)

    def __post_init__(self) -> None:
        self.store.clock = self.base.clock

    @property
    def env(self) -> Env:
        return tier_env(self.base, TierOptions(open_store=self.store.open))

    @property
    def disk(self) -> DamageFileSystem:
        return self.base.files

    @property
    def log(self) -> Log:
        return self.directory.log(TOPIC, 0)

    def start(self, **config: str) -> "Tiered":
        """Create the directory and its topic."""
        self.directory = LogDir.open(PATH, env=self.env, options=WRITABLE)
        given = {**TIERED, **{key.replace("_", "."): text for key, text in config.items()}}
        self.directory.create_topic(TOPIC, config=given)
        return self

    def reopen(self, *, clean: bool = True) -> "Tiered":
        """Close the directory, or crash, and open it for writing again."""
        if clean:
            self.directory.close()
        else:
            self.directory.abandon()
        self.directory = LogDir.open(PATH, env=self.env, options=WRITABLE)
        return self

    def reader(self) -> LogView:
        """Open the partition for reading, as another process does."""
        return LogDir.open(PATH, env=self.env).reader(TOPIC, 0)

    def fill(self, count: int, *, step_ms: int = 1000) -> None:
        """Append `count` records, each in a batch; a value is the record's offset and 60 dots."""
        for _ in range(count):
            self.base.clock.advance(step_ms)
            value = b"%d" % self.log.log_end_offset
            self.log.append([NewRecord(key=b"k", value=value + b"." * 60)])

    def move(self, **options: int | bool) -> MoveReport:
        """Run `tidelog tier` on the partition once."""
        return tier_partition(self.directory, NAME, MoveOptions(**options))  # type: ignore[arg-type] # options by name


def values(reader: LogView) -> list[int]:
    """Return the records' offsets, after checking that each value starts with its offset."""
    found = []
    for record in reader.records():
        assert record.value is not None
        assert record.value.startswith(b"%d." % record.offset)
        found.append(record.offset)
    return found


def moved(count: int = 40, **config: str) -> Tiered:
    """Create a partition with all finished segments in the tier."""
    tiered = Tiered().start(**(config or EAGER))
    tiered.fill(count)
    tiered.move()
    return tiered
