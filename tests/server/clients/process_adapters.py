"""kcat and Kafka's Java client with the interface of `adapters.Client`."""

import base64
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from tests.server.clients.adapters import (
    PARTITIONS,
    SESSION_MS,
    TIMEOUT_S,
    Lookup,
    Rebalance,
)
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.needs import need_kcat


class Kcat:
    """kcat, one process per operation."""

    name = "kcat"

    def __init__(self) -> None:
        need_kcat()

    def _run(self, bootstrap: str, *arguments: str, data: str = "") -> str:
        command = ["kcat", "-b", bootstrap, *arguments]
        done = subprocess.run(
            command, input=data, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return done.stdout

    def produce(self, bootstrap: str, topic: str, values: Sequence[str]) -> None:
        self._run(bootstrap, "-P", "-t", topic, "-p", "0", "-z", "lz4", data="\n".join(values))

    def consume(self, bootstrap: str, topic: str) -> list[str]:
        said = self._run(bootstrap, *("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q"))
        return said.splitlines()

    def look_up(self, bootstrap: str, topic: str, times: Sequence[int]) -> Lookup:
        begin, end, *found = (self._query(bootstrap, topic, time) for time in (-2, -1, *times))
        assert begin is not None
        assert end is not None
        return Lookup(begin, end, found)

    def _query(self, bootstrap: str, topic: str, time: int) -> int | None:
        try:
            said = self._run(bootstrap, "-Q", "-t", f"{topic}:0:{time}")
        except subprocess.CalledProcessError as failure:
            if "essage format" not in str(failure.stderr):
                raise
            return None
        offset = int(said.split()[-1])
        return offset if offset >= 0 else None

    def rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        with self._member(bootstrap, topic, group) as first:
            sizes = [self._settled(first, PARTITIONS)]
            with self._member(bootstrap, topic, group) as second:
                sizes += [self._settled(one, PARTITIONS // 2) for one in (first, second)]
            sizes.append(self._settled(first, PARTITIONS))
        said = self._run(bootstrap, *("-C", "-t", topic, "-o", "beginning", "-e", "-q"))
        assert len(said.splitlines()) == records
        return Rebalance(sizes, set(said.splitlines()))

    @contextmanager
    def _member(self, bootstrap: str, topic: str, group: str) -> "Iterator[subprocess.Popen[str]]":
        command = ["kcat", "-b", bootstrap, "-G", group, topic]
        settings = (
            "auto.offset.reset=earliest",
            "heartbeat.interval.ms=100",
            f"session.timeout.ms={SESSION_MS}",
        )
        more = [part for setting in settings for part in ("-X", setting)]
        process = subprocess.Popen(
            [*command[:3], *more, *command[3:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)

    @staticmethod
    def _settled(process: "subprocess.Popen[str]", each: int) -> int:
        """Read kcat's output until kcat has this number of partitions; return the number."""
        assert process.stderr is not None
        for line in process.stderr:
            if "assigned:" in line and "revoked" not in line.split("assigned:")[0].split()[-1:]:
                count = line.split("assigned:")[1].count("[")
                if count == each:
                    return count
        raise AssertionError("kcat ended")


class Java:
    """Kafka's own Java client, in the oracle's JVM."""

    name = "java"

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def produce(self, bootstrap: str, topic: str, values: Sequence[str]) -> None:
        records = [{"value": value.encode()} for value in values]
        config = {"bootstrap.servers": bootstrap, "compression.type": "zstd"}
        self._oracle.ask("produce", config=config, topic=topic, partition=0, records=records)

    def consume(self, bootstrap: str, topic: str) -> list[str]:

        config = {"bootstrap.servers": bootstrap, "enable.auto.commit": "false"}
        told = self._oracle.ask("consume", config=config, topic=topic)
        lines = cast("list[dict[str, str | None]]", told)
        return [base64.b64decode(line["value"] or "").decode() for line in lines]

    def look_up(self, bootstrap: str, topic: str, times: Sequence[int]) -> Lookup:
        told = self._oracle.ask("look_up", bootstrap=bootstrap, topic=topic, times=list(times))
        said = cast("dict[str, object]", told)
        found = cast("list[list[int] | None]", said["found"])
        return Lookup(
            cast("int", said["begin"]),
            cast("int", said["end"]),
            [None if one is None else one[0] for one in found],
        )

    def rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": "100",
            "partition.assignment.strategy": assignor,
        }
        told = self._oracle.ask(
            "rebalance", config=config, topic=topic, partitions=PARTITIONS, records=records
        )
        said = cast("dict[str, list[object]]", told)
        return Rebalance(cast("list[int]", said["sizes"]), set(cast("list[str]", said["values"])))
