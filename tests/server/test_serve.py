"""`tidelog serve` as a process: its line of output, its exit codes, and refused configurations."""

import json
import os
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
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.cli.surroundings import ExitCode

TIMEOUT_S = PATIENCE_S


def command(*options: str) -> list[str]:
    """Return a command line of `tidelog serve` on a free port."""
    start = "import sys; from tidelog.cli.app import main; sys.exit(main())"
    return [sys.executable, "-c", start, "serve", "--listen", "127.0.0.1:0", *options]


@contextmanager
def serving(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run `tidelog serve` until the block ends; yield its process and the address it printed."""
    process = subprocess.Popen(
        command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process, address_of(process)
        finally:
            process.kill()


def address_of(process: "subprocess.Popen[str]") -> str:
    """Return the address in the line that the broker prints when it begins to listen."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(TIMEOUT_S), "no line"
    line = process.stdout.readline()
    found = re.fullmatch(r"listening on (127\.0\.0\.1:[0-9]+), data in \S+\n", line)
    assert found is not None, line
    return found[1]


def refused(*options: str) -> tuple[int, str]:
    """Run `tidelog serve`, which must fail to start; return its exit code and message."""
    done = subprocess.run(
        command(*options), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_serve_prints_one_line_locks_the_directory_and_ends_cleanly(tmp_path: Path) -> None:
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


def test_usage_errors_precede_any_opening(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "data")]
    code, message = refused(*data, "--listen", "0.0.0.0:0")
    assert (code, "--insecure" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--metrics", "0.0.0.0:0")
    assert (code, "tidelog.metrics.listen" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--listen", "127.0.0.1:99999")
    assert (code, "must be HOST:PORT" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--metrics", "foo")
    assert (code, "--metrics=foo: must be HOST:PORT" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--set", "num.partition=3")
    assert (code, "did you mean num.partitions?" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--set", "num.partitions=none")
    assert (code, "a whole number >= 1" in message) == (ExitCode.USAGE, True)
    code, message = refused(*data, "--config", str(tmp_path / "nothing"))
    told = f"error: --config {tmp_path}/nothing: No such file or directory\n"
    assert (code, message) == (ExitCode.USAGE, told)
    code, message = refused("--set", f"log.dirs={tmp_path}/a,{tmp_path}/b")
    assert (code, "but a broker of tidelog supports only one" in message) == (ExitCode.USAGE, True)
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, message = refused("--data", str(tmp_path), "--listen", place)
        assert (code, f"can't listen on {place}" in message) == (ExitCode.ERROR, True)
        code, message = refused("--data", str(tmp_path), "--metrics", place)
        assert (code, f"can't listen on {place}" in message) == (ExitCode.ERROR, True)


def test_all_errors_of_a_settings_file_are_reported_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# two\nnum.partitions=two\nfoo=1\nlog.retention.hours=x\nnode.id=y\n")
    code, message = refused("--data", str(tmp_path), "--config", str(file), "--set", "node.id=z")
    assert (code, message.count("\n")) == (ExitCode.USAGE, 1)
    assert f"{file}:2: num.partitions=two: must be" in message
    assert f"; {file}:3: foo: unknown broker setting" in message
    assert f"; {file}:4: log.retention.hours=x: " in message
    assert "; node.id=z: must be" in message


def test_kafkas_server_properties_are_accepted(tmp_path: Path) -> None:
    """If Kafka's file names a controller's listener, the broker ignores it and prints a note."""
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        "controller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={tmp_path}/data\n"
    )
    with serving("--config", str(file)) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=TIMEOUT_S)
    assert "note: controller.listener.names: its listeners are ignored" in told


@pytest.fixture
def hang_ups_end() -> Iterator[None]:
    """Give SIGHUP its default effect, which child processes inherit, even under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def hang_ups_are_ignored() -> Iterator[None]:
    """Ignore SIGHUP, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_ups_end")
def test_a_terminal_that_closes_ends_it_cleanly(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")) as (process, _):
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.usefixtures("hang_ups_are_ignored")
def test_under_nohup_it_stays_where_the_terminal_closes(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")) as (process, address):
        process.send_signal(signal.SIGHUP)
        admin = AdminClient({"bootstrap.servers": address})
        assert admin.list_topics(timeout=TIMEOUT_S).brokers
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_a_failed_write_to_stdout_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("--data", str(tmp_path)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == ExitCode.ERROR
    assert done.stderr.endswith("\nerror: stdout: No space left on device\n")


def test_a_terminal_shows_how_to_try_and_stop_the_broker(tmp_path: Path) -> None:
    terminal, stderr = os.openpty()
    process = subprocess.Popen(
        command("--data", str(tmp_path)), stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    os.close(stderr)
    with process:
        try:
            address = address_of(process)
            told = ""
            while "Ctrl-C" not in told:
                told += os.read(terminal, 4096).decode()
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            os.close(terminal)
    assert (process.returncode, rest) == (0, "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told)
    assert f"hint: try: kcat -b {address} -L" in plain
    assert "hint: Ctrl-C stops the broker" in plain


def test_stderr_has_one_object_per_line(tmp_path: Path) -> None:
    options = ["--data", str(tmp_path), "--log-format", "json", "--set", "process.roles=broker"]
    with serving(*options, "--metrics", "127.0.0.1:0") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=TIMEOUT_S)
    lines = [json.loads(line) for line in told.splitlines()]
    assert "process.roles: has no effect in tidelog" in [line["message"] for line in lines]
    (pages,) = [line["address"] for line in lines if "address" in line]
    assert re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", pages)
    code, told = refused(*options, "--set", "num.partitions=two")
    lines = [json.loads(line) for line in told.splitlines()]
    assert (code, lines[-1]["level"]) == (ExitCode.USAGE, "error")
    assert lines[-1]["message"].startswith("num.partitions=two: must be")


def test_an_error_in_the_form_of_an_object_keeps_its_hint(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    code, told = refused("--data", str(place))
    error, _, hint = told.removeprefix("error: ").partition("\nhint: ")
    assert hint
    other, line = refused("--data", str(place), "--log-format", "json")
    assert (other, json.loads(line)["message"]) == (code, f"{error}; {hint.strip()}")


def test_stderr_has_objects_if_stdout_has_no_reader(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command("--data", str(tmp_path), "--log-format", "json", "--set", "num.partitions=two"),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(writing)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, json.loads(line)["level"]) == (ExitCode.USAGE, "error")
