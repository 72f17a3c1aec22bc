"""A mirror over Spark Connect: batches are written by the server, beside the client's checkpoint.

The client plans, starts the query and waits. The server runs each batch in a Python process of its
own, which finds plan and options in what was sent and everything else in the checkpoint: so the
checkpoint must be a folder that both see, at one path. What the server finds there is compared with
what the client wrote before anything is written to the target.

`mirror.batch.lock` is held while a batch is written, and by a client that stops the query: whoever
comes meanwhile is refused, and its batch comes again. `batches.json` has the last batches, for the
client to tell of.
"""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from tidelog.cluster.offset_map import OffsetMap
from tidelog.cluster.offset_map_file import read_map
from tidelog.env import Env, os_env
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.spark.jobs.mirror_batches import BATCHES_KEPT, Batches, Watcher, target_of
from tidelog.spark.jobs.mirror_growth import Growth
from tidelog.spark.jobs.mirror_options import MAP_FILE, STATE_FILE, MirrorOptions
from tidelog.spark.jobs.mirror_places import as_mapped
from tidelog.spark.jobs.mirror_plan import BatchDone, MirrorPlan, decode_state
from tidelog.spark.jobs.pace import wait_seconds
from tidelog.spark.jobs.patient_query import PatientQuery
from tidelog.storage import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.env import LockHandle

LOCK_FILE: Final = "mirror.batch.lock"
DONE_FILE: Final = "batches.json"
# The client looks every second.
_DONE_KEPT: Final = 1_000
_LOOK_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class ServerBatches:
    """Writes the batches of a query, on the server. Sent there; keeps what it has found.

    Attributes:
        plan: What is copied, as the client knew it.
        options: How; the checkpoint's path is absolute.
        mirror_id: What the checkpoint must say.
    """

    plan: MirrorPlan
    options: MirrorOptions
    mirror_id: str
    _batches: Batches | None = field(default=None, repr=False)

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write a batch, then the map, then the list of batches."""
        env = os_env()
        self._check_checkpoint(env)
        with _alone(env, self.options.checkpoint, batch_id):
            batches = self._open(env)
            batches(rows, batch_id)
            _write_done(env, self.options.checkpoint, batches.done)

    def _check_checkpoint(self, env: Env) -> None:
        """Raise InvalidRequest where the server sees another folder than the client."""
        path = f"{self.options.checkpoint}/{STATE_FILE}"
        try:
            found = decode_state(files.read_file(env.files, path)).mirror_id
        except FileNotFoundError:
            found = "nothing"
        if found != self.mirror_id:
            raise InvalidRequest(
                f"{path}: the Spark Connect server finds {found} there, the client has written"
                f" mirror {self.mirror_id}: name a checkpoint that both see at one path"
            )

    def _open(self, env: Env) -> Batches:
        """What writes the batch; its map is that on disk: another query may have been here."""
        path = f"{self.options.checkpoint}/{MAP_FILE}"
        found = read_map(env.files, path)
        known = self._batches
        if known is None or len(known.grown_plan.pairs) != len(found.sources):
            known = self._batches = self._begin(env, path, found)
        known.found = found
        return known

    def _begin(self, env: Env, path: str, found: OffsetMap) -> Batches:
        plan = as_mapped(self.plan, found)
        growth = Growth(
            plan=plan,
            env=env,
            create=self.options.create,
            force=self.options.force,
            settings=self.options.settings,
        )
        target = target_of(plan, dict(self.options.sink), self.mirror_id, found)
        return Batches(target=target, found=found, path=path, env=env, growth=growth)


@contextmanager
def _alone(env: Env, checkpoint: str, batch_id: int) -> Iterator[None]:
    """Hold the lock of batches; raises DirectoryLocked."""
    try:
        lock = env.files.lock(f"{checkpoint}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise DirectoryLocked(
            f"{checkpoint}: the mirror was stopped, or another query writes a batch of it; batch"
            f" {batch_id} comes again"
        ) from error
    with closing(lock):
        yield


def _write_done(env: Env, checkpoint: str, done: "deque[BatchDone]") -> None:
    text = json.dumps([asdict(one) for one in list(done)[-_DONE_KEPT:]])
    files.write_atomically(env.files, f"{checkpoint}/{DONE_FILE}", f"{text}\n".encode())


@dataclass(slots=True, kw_only=True)
class ClientBatches:
    """What the client sees of batches that the server writes. For one thread.

    Attributes:
        plan: What is copied, as it was at the start.
        path: The map's file.
        env: Files of the checkpoint.
        watch: Told of each batch.
        started: Spark's query, once it is started.
        after: Batches up to this one are of earlier runs.
        done: The last ones.
    """

    plan: MirrorPlan
    path: str
    env: Env
    watch: Watcher
    started: PatientQuery | None = None
    after: int = -1
    done: deque[BatchDone] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    _lock: "LockHandle | None" = None

    @property
    def found(self) -> OffsetMap:
        """The map as it is."""
        return read_map(self.env.files, self.path)

    @property
    def grown_plan(self) -> MirrorPlan:
        """The plan with the topics that the server has found since."""
        return as_mapped(self.plan, self.found)

    @property
    def _checkpoint(self) -> str:
        return self.path.removesuffix(f"/{MAP_FILE}")

    def told(self) -> None:
        """Tell of the batches that were done since the last call."""
        try:
            data = files.read_file(self.env.files, f"{self._checkpoint}/{DONE_FILE}")
        except FileNotFoundError:
            return
        for one in json.loads(data):
            done = BatchDone(**one | {"notes": tuple(one["notes"])})
            if done.batch_id > self.after:
                self.after = done.batch_id
                self.done.append(done)
                self.watch(done)

    def close(self) -> None:
        """Wait until the running batch is written, and let none begin."""
        while self._lock is None and self.started is not None and self.started.current.isActive:
            try:
                self._lock = self.env.files.lock(f"{self._checkpoint}/{LOCK_FILE}")
            except BlockingIOError:
                wait_seconds(_LOOK_SECONDS)

    def release(self) -> None:
        """The query has ended: let the next one begin."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
