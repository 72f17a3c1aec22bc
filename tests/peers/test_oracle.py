"""One JVM serves hundreds of tests, so a failed request must not affect the next one."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle, OracleError

# A program that the tests run in place of the JVM. It responds with the name of the request. If the
# request is `late`, it interrupts the caller, and responds only after the next request has come.
STAND_IN = """
import json, os, signal, sys

for line in sys.stdin:
    op = json.loads(line)["op"]
    if op == "die":
        sys.exit("gone")
    if op == "late":
        os.kill(os.getppid(), signal.SIGUSR1)
        sys.stdin.readline()
    print(json.dumps({"result": op}), flush=True)
"""


class Home(KafkaHome):
    """Runs `STAND_IN` in place of Kafka's JVM."""

    def java_command(self, *_: object, **__: object) -> list[str]:
        return [sys.executable, "-c", STAND_IN]


class Interrupted(Exception):
    """Raised in a test at any moment, like the error of pytest's time limit."""


@pytest.fixture
def oracle() -> Iterator[Oracle]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    with Oracle(Home(Path(), Path())) as found:
        yield found
    signal.signal(signal.SIGUSR1, before)


def test_a_late_response_is_not_used_for_the_next_request(oracle: Oracle) -> None:
    assert oracle.ask("a") == "a"
    with pytest.raises(Interrupted):
        oracle.ask("late")
    assert oracle.ask("b") == "b"
    assert oracle.ask("c") == "c"


def test_an_oracle_that_died_is_restarted(oracle: Oracle) -> None:
    with pytest.raises(OracleError, match="gone"):
        oracle.ask("die")
    assert oracle.ask("a") == "a"
