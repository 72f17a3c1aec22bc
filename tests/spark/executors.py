"""Executors of our standalone cluster: their processes, kills, and Spark's events about them.

Executors are descendants of the workers, and have the id of the application in their command line.
"""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.spark.cluster import SMALL, WORKERS, Processes
from tests.spark.drivers import command_of, descendants
from tests.worlds.spark.settings import QUICK_JVM

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
LOCAL = "local"


def variables(folder: Path) -> dict[str, str]:
    """Return environment variables for a cluster's processes: small JVMs, a folder for files."""
    return {
        "SPARK_LOCAL_DIRS": str(folder / LOCAL),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_DAEMON_MEMORY": "256m",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One driver's application on a cluster.

    Attributes:
        processes: The cluster's processes.
        url: URL of its master.
        events: Folder for Spark's event log of this application alone.
    """

    processes: Processes
    url: str
    events: Path

    def conf(self) -> dict[str, str]:
        """Return settings for the application's driver."""
        self.events.mkdir()
        return SMALL | {
            "spark.master": self.url,
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": self.events.as_uri(),
        }

    def executors(self) -> list[int]:
        """Return process ids of the application's executors, which are JVMs."""
        names = [path.name.removesuffix(".inprogress") for path in self.events.glob("app-*")]
        workers = [self.processes.pid(f"worker-{number}") for number in range(WORKERS)]
        below = {pid: command_of(pid) for worker in workers for pid in descendants(worker)}
        return [
            pid
            for pid, command in below.items()
            if EXECUTOR in command and any(f"--app-id {name} " in command for name in names)
        ]

    def kill_some(self, draw: random.Random) -> int:
        """Kill one or more of the application's executors; return how many were killed."""
        there = self.executors()
        victims = draw.sample(there, draw.randint(1, len(there))) if there else []
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return len(victims)

    def shuffled(self) -> set[Path]:
        """Return the shuffle files that executors of all applications keep for other executors."""
        return set((self.processes.folder / LOCAL).glob("**/shuffle_*.data"))

    def is_busy(self) -> bool:
        """Whether a job is running: the event log of the application has more starts than ends."""
        texts = [log.read_bytes() for log in self.events.glob("app-*")]
        kinds = [b'"SparkListenerJob%s"' % kind for kind in (b"Start", b"End")]
        begun, ended = (sum(text.count(kind) for text in texts) for kind in kinds)
        return begun > ended

    def told(self) -> "Told":
        """Return the effects of kills that Spark's event log shows; the driver must have ended."""
        [log] = self.events.glob("app-*")
        events: list[dict[str, object]] = [json.loads(line) for line in log.open()]
        kinds = Counter(str(event["Event"]).removeprefix("SparkListener") for event in events)
        ends = Counter(map(_reason, events))
        return Told(
            added=kinds["ExecutorAdded"],
            removed=kinds["ExecutorRemoved"],
            lost_tasks=ends["ExecutorLostFailure"],
            lost_fetches=ends["FetchFailed"],
        )


def _reason(event: Mapping[str, object]) -> str:
    """Return the reason of a task's end, empty for other events."""
    reason = event.get("Task End Reason")
    return str(reason["Reason"]) if isinstance(reason, dict) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Effects of kills, counted in Spark's event log.

    Attributes:
        added: Number of executors that the application had.
        removed: Number of executors that were removed before the application's end.
        lost_tasks: Number of tasks that failed because their executor was lost.
        lost_fetches: Number of tasks that could not fetch an executor's shuffle files.
    """

    added: int
    removed: int
    lost_tasks: int
    lost_fetches: int
