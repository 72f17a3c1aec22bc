"""Runs Apache Kafka's own classes on records, logs and files.

`Oracle` is one JVM (tools/kafka/src/tidelog/kafka/Oracle.java) that responds with one line of JSON
per request, so hundreds of cases need one start. tests/conftest.py provides the fixture
`kafka_oracle`, one per process, to all tests.
"""

import base64
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import pytest
from tests.worlds.kafka.dumps import Findings, parse_dump
from tests.worlds.kafka.home import KafkaHome, required_home

# Suffixes of the files that DumpLogSegments checks.
DUMPED_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class OracleError(Exception):
    """Kafka threw an exception.

    Attributes:
        kind: Simple name of the Java class, e.g. `CorruptRecordException`.
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as Kafka reads it; `control_type` is None outside control batches."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    control_type: str | None = None
    coordinator_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """A batch as Kafka reads it; `error` is the class of Kafka's exception, None without one.

    Attributes:
        fields: Header fields by the attribute names of the batches in `tidelog.record`.
        records: The records read before an error.
        error: Simple name of Kafka's exception, None without one.
    """

    fields: dict[str, object]
    records: list[KafkaRecord]
    error: str | None


@dataclass(frozen=True, slots=True)
class Script:
    """Steps for Kafka's storage classes on one log; SegmentOracle.java lists the kinds of steps.

    Attributes:
        directory: Partition folder, named topic-partition; created if missing.
        steps: Steps in order; each has `do` and arguments; the argument `now_ms` sets the clock
            before the step.
        config: Topic settings by Kafka's names.
        now_ms: The clock while the log is opened.
        clean: Whether the last stop was a controlled shutdown.
        recovery_point: Offset at which recovery starts after an uncontrolled stop.
        log_start: Value of the log start checkpoint.
        topic_id: Required id in partition.metadata; None for any.
        end: `close` closes the log as in a controlled shutdown; `crash` leaves the files as they
            are.
    """

    directory: Path
    steps: Sequence[Mapping[str, object]] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    now_ms: int = 0
    clean: bool = True
    recovery_point: int = 0
    log_start: int = 0
    topic_id: str | None = None
    end: str = "close"

    def question(self) -> dict[str, object]:
        """Return the fields of the `log_script` request."""
        asked: dict[str, object] = {
            "dir": str(self.directory),
            "config": dict(self.config),
            "now_ms": self.now_ms,
            "clean": self.clean,
            "recovery_point": self.recovery_point,
            "log_start": self.log_start,
            "end": self.end,
            "steps": list(self.steps),
        }
        return asked | ({"topic_id": self.topic_id} if self.topic_id else {})


def _encode(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON for {value!r}")


def _decode(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(cast("str", text))


def _record(told: dict[str, object]) -> KafkaRecord:
    headers = cast("list[list[str | None]]", told["headers"])
    return KafkaRecord(
        offset=cast("int", told["offset"]),
        timestamp=cast("int", told["timestamp"]),
        sequence=cast("int", told["sequence"]),
        key=_decode(told["key"]),
        value=_decode(told["value"]),
        headers=tuple((cast("str", key), _decode(value)) for key, value in headers),
        control_type=cast("str | None", told.get("control_type")),
        coordinator_epoch=cast("int | None", told.get("coordinator_epoch")),
    )


def _batch(told: dict[str, object]) -> KafkaBatch:
    records = cast("list[dict[str, object]]", told.pop("records", []))
    error = cast("str | None", told.pop("error", None))
    told.pop("message", None)
    told.pop("code", None)
    return KafkaBatch(told, [_record(record) for record in records], error)


class Oracle:
    """The JVM with Kafka's classes. Not thread-safe. Calls: start -> ask* -> close.

    Hundreds of tests use the same JVM. If a request got no response (the JVM has exited, or the
    test timed out), the next request starts another JVM.
    """

    def __init__(self, home: KafkaHome) -> None:
        self._home = home
        self._start()

    def _start(self) -> None:
        self._has_answered = True
        self._told = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            self._home.java_command("tidelog.kafka.Oracle"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._told,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the process's input, which ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the process exited before it read all input
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._told.close()

    def ask(self, op: str, **fields: object) -> object:
        """Send a request; return the response's JSON. Bytes in `fields` are sent as base64.

        Raises:
            OracleError: Kafka, or the oracle, threw an exception.
        """
        if not self._has_answered:
            self._process.kill()
            self.close()
            self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._has_answered = False
        self._process.stdin.write(json.dumps({"op": op, **fields}, default=_encode) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._told.seek(0)
            raise OracleError("ProcessEnded", self._told.read()[-2000:])
        self._has_answered = True
        reply = json.loads(line)
        if "error" in reply:
            raise OracleError(reply["error"], reply["message"])
        result: object = reply["result"]
        return result

    def write_batches(self, batches: Sequence[Mapping[str, object]]) -> bytes:
        """Return consecutive batches built by Kafka; RecordVectors.java names the fields."""
        told = cast("dict[str, str]", self.ask("records_write", batches=list(batches)))
        return base64.b64decode(told["data"])

    def read_batches(self, data: bytes | bytearray | memoryview) -> list[KafkaBatch]:
        """Return the batches that Kafka's classes find in `data`."""
        told = cast("list[dict[str, object]]", self.ask("records_read", data=data))
        return [_batch(batch) for batch in told]

    def run(self, script: Script) -> list[object]:
        """Return the results of a script's steps; a refused step is a dict with `error`."""
        return cast("list[object]", self.ask("log_script", **script.question()))

    def run_well(self, script: Script) -> list[object]:
        """Run a script in which no step may fail; return the results.

        Raises:
            OracleError: Kafka refused a step.
        """
        answers = self.run(script)
        for answer in answers:
            if isinstance(answer, dict) and "error" in answer:
                raise OracleError(answer["error"], answer["message"])
        return answers

    def dump(self, files: Sequence[Path], *options: str) -> Findings:
        """Return the findings of DumpLogSegments in `files` with `options`."""
        names = ",".join(str(file) for file in files)
        told = cast("dict[str, str]", self.ask("dump", args=["--files", names, *options]))
        return parse_dump(told["out"], told["err"], told.get("error"), told.get("message"))

    def check_directory(self, directory: Path) -> Findings:
        """Return all findings of DumpLogSegments in the Kafka files below `directory`.

        The tool reads logs to the last record, and compares each entry of an index with the log.
        DumpLogSegments also runs Kafka's own sanity check of indexes.
        """
        files = sorted(file for file in directory.rglob("*") if file.suffix in DUMPED_SUFFIXES)
        indexes = [file for file in files if file.suffix in (".index", ".timeindex")]
        found = self.dump(files, "--deep-iteration", "--verify-index-only")
        return found | self.dump(indexes, "--index-sanity-check") if indexes else found


@pytest.fixture(scope="session")
def kafka_jars() -> KafkaHome:
    """Kafka's jars and our classes; without them, the test is skipped, or fails in CI."""
    return required_home()


@pytest.fixture(scope="session")
def kafka_oracle(kafka_jars: KafkaHome) -> Iterator[Oracle]:
    """One JVM for the whole session."""
    with Oracle(kafka_jars) as oracle:
        yield oracle
