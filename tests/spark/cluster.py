"""Small real Spark clusters on loopback; each is a few processes of the package pyspark.

`Standalone` is a master and two workers of one core each, `ConnectServer` a Spark Connect server.
A cluster ends only processes that it started. `home` and `java_home` select the installations of
Spark and Java.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.worlds.kafka.broker import free_port
from tests.worlds.spark.settings import QUICK_JVM

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WORKERS = 2
# Settings for drivers of a standalone cluster.
SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    # Start no job before the executors on both workers are registered, however long their JVMs
    # take.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def spark_home() -> Path:
    """Return the installed pyspark package, which is a complete Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


def _sources() -> Path:
    """Return the folder with the tested package tidelog."""
    import tidelog

    return Path(tidelog.__file__).parent.parent


@dataclass(slots=True)
class Processes:
    """Processes of Spark; their logs are in one folder."""

    folder: Path
    home: Path = field(default_factory=spark_home)
    java_home: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return environment variables for Spark's processes.

        They are this process's variables without those that begin with SPARK, plus new variables.
        """
        found = {name: value for name, value in os.environ.items() if name[:5] != "SPARK"}
        found |= {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(self.home.parent), str(_sources())]),
        }
        if self.java_home is not None:
            found["JAVA_HOME"] = self.java_home
        else:
            found["JDK_JAVA_OPTIONS"] = QUICK_JVM
        return found | dict(self.variables)

    def start(self, name: str, *command: str) -> Path:
        """Start a process; return its log."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            self._running[name] = subprocess.Popen(
                [str(self.home / "bin" / command[0]), *command[1:]],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        return log

    def pid(self, name: str) -> int:
        """Return the id of a started process."""
        return self._running[name].pid

    def wait(self, log: Path, is_up: Callable[[], bool]) -> None:
        """Wait until a started process is ready.

        If a process ends before that, raise RuntimeError with the last part of the log.
        """
        for _ in range(START_TIMEOUT_S * 10):
            if is_up():
                return
            if any(process.poll() is not None for process in self._running.values()):
                break
            threading.Event().wait(0.1)
        raise RuntimeError(f"{log.name}: did not start: {log.read_text()[-3000:]}")

    def stop(self) -> None:
        """End all processes, the last first, and wait until they have ended."""
        for process in reversed(self._running.values()):
            process.terminate()
        for process in reversed(self._running.values()):
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
        self._running.clear()


def start_standalone(processes: Processes) -> str:
    """Start a master and two workers of one core; return the URL of the master."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    log = processes.start("master", "spark-class", MASTER, *place, "--port", str(port))
    processes.wait(log, lambda: _answers(port))
    size = ("--cores", "1", "--memory", "600m")
    for number in range(WORKERS):
        work = ("--work-dir", str(processes.folder / f"work-{number}"))
        log = processes.start(f"worker-{number}", "spark-class", WORKER, *place, *size, *work, url)
        processes.wait(log, partial(_is_registered, log))
    return url


def _is_registered(log: Path) -> bool:
    return "registered with master" in log.read_text()


def start_connect(processes: Processes) -> str:
    """Start a Spark Connect server on two local cores; return its URL."""
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(processes.folder / "warehouse"),
    }
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    size = ("--master", "local[2]", "--driver-memory", "1g")
    log = processes.start(
        "connect", "spark-submit", "--class", CONNECT, *size, *given, "spark-internal"
    )
    processes.wait(log, lambda: _answers(port))
    return f"sc://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
