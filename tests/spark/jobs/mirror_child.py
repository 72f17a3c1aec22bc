"""Runs a continuous mirror in a separate driver, which a test kills.

    python mirror_child.py '{"source": ..., "target": ..., "checkpoint": ..., "calls": N}'

With `calls`, the program kills its process group (including the JVM) before the driver's N-th
rename, removal or directory sync. So a kill can hit any step of a commit that changes names.
Without `calls`, the driver mirrors until it is killed, or with `once` until it has copied the
existing records. `conf` has settings of Spark.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass

from tests.spark.drivers import open_session

from tidelog.env import Env, OsFileSystem
from tidelog.jobs.mirror import job
from tidelog.spark import sink_options

BATCH_RECORDS = 60


@dataclass(slots=True)
class Countdown:
    """Counts calls down, and kills the process group when the count reaches 0."""

    left: int

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.killpg(0, signal.SIGKILL)


class DyingFiles(OsFileSystem):
    """The machine's file system; each rename, removal and directory sync is counted down."""

    def __init__(self, countdown: Countdown) -> None:
        super().__init__()
        self._countdown = countdown

    def rename(self, source: str, target: str) -> None:
        self._countdown.count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._countdown.count()
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self._countdown.count()
        super().sync_dir(path)


def main(given: dict[str, object], conf: dict[str, str]) -> None:
    """Mirror until the process is killed; with `once`, mirror only the existing records."""
    spark = open_session("local[2]", conf)
    env = Env(files=DyingFiles(Countdown(int(str(given.get("calls", 0))))))
    # Only the driver, which attaches segments, uses this `Env`; workers are separate processes.
    vars(sink_options)["os_env"] = lambda: env
    job.mirror(
        spark,
        str(given["source"]),
        [str(given["topic"])],
        str(given["target"]),
        checkpoint=str(given["checkpoint"]),
        continuous=not given.get("once"),
        trigger_ms=0,
        batch_records=BATCH_RECORDS,
        env=env,
    )
    spark.stop()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(given, given.pop("conf", {}))
