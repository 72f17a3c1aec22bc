"""`tidelog serve` as people start it: a process, its one line, its end; and what it refuses."""

import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.waiting import PATIENCE_S

import tidelog
from tidelog.cli.problems import ExitCode

TIMEOUT_S = PATIENCE_S


def command(*options: str) -> list[str]:
    """A command line of `tidelog serve` on a free port."""
    start = "import sys; from tidelog.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", start, "serve", "--listen", "127.0.0.1:0", *options]


@contextmanager
def serving(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A running broker and the address that it has printed; ended at the end of the block."""
    process = subprocess.Popen(
        command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process, address_of(process)
        finally:
            process.kill()


def address_of(process: "subprocess.Popen[str]") -> str:
    """What the line says that it prints when it listens."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(TIMEOUT_S), "no line"
    line = process.stdout.readline()
    found = re.fullmatch(r"listening on (127\.0\.0\.1:[0-9]+), data in \S+\n", line)
    assert found is not None, line
    return found[1]


def refused(*options: str) -> tuple[int, str]:
    """Exit code and the message of a start that fails."""
    done = subprocess.run(
        command(*options), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_one_line_one_holder_and_a_clean_end(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with serving("--data", data) as (process, address):
        admin = AdminClient({"bootstrap.servers": address})
        assert list(admin.list_topics("flights", timeout=TIMEOUT_S).topics) == ["flights"]
        code, message = refused("--data", data)
        assert (code, "another process has it open for writing" in message) == (
            ExitCode.ERROR,
            True,
        )
        process.send_signal(signal.SIGTERM)
        rest, told = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in told
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "data" / "tidelog-control.sock").exists()
    with tidelog.open(data) as log:
        assert list(log.topics()) == ["flights"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("server.properties", "# a comment\nnum.partitions=4\nlog.retention.hours = 2\n"),
        ("broker.toml", 'num.partitions = 4\n[log.retention]\nhours = "2"\n'),
    ],
)
def test_settings_from_a_file_and_over_it(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    options = ["--config", str(tmp_path / name), "--set", "log.retention.hours=3"]
    data = str(tmp_path / "data")
    with serving("--data", data, *options) as (_, address):
        admin = AdminClient({"bootstrap.servers": address})
        found = admin.list_topics("flights", timeout=TIMEOUT_S)
        assert len(found.topics["flights"].partitions) == 4


def test_what_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "data")]
    code, message = refused(*data, "--listen", "0.0.0.0:0")
    assert (code, "--insecure" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--set", "num.partition=3")
    assert (code, "did you mean num.partitions?" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--set", "num.partitions=none")
    assert (code, "a whole number >= 1" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--config", str(tmp_path / "nothing"))
    assert (code, "nothing" in message) == (ExitCode.USAGE, True)
    assert not (tmp_path / "data").exists()


def test_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, message = refused("--data", str(tmp_path), "--listen", place)
    assert (code, f"can't listen on {place}" in message) == (ExitCode.ERROR, True)
