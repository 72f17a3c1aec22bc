"""Exit codes, messages, help, and the modules that a command loads."""

import errno
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.worlds.command_line import Cli

from tidelog.cli import surroundings as problems
from tidelog.cli.app import COMMANDS, JOBS, app, run
from tidelog.cli.surroundings import ExitCode, Surroundings, wait_seconds
from tidelog.errors import (
    ClockJump,
    CorruptBatch,
    CorruptFile,
    DamagedLog,
    MissingFile,
    NotAuthorized,
    StorageFailure,
    TidelogError,
    UnknownTopic,
)
from tidelog.storage.open_files import as_storage_failure

PLAIN = (
    "topics",
    "create",
    "delete",
    "describe",
    "config",
    "produce",
    "offsets",
    "read",
    "dump",
    "why",
)
# Modules that a plain command must not load, because each takes tens to hundreds of ms to load.
HEAVY = ("numpy", "pyarrow", "numba", "pandas", "pyspark", "rich", "typer", "pydantic")


@pytest.mark.parametrize("command", sorted([*COMMANDS, "spark"]))
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"], Surroundings()) == 0
    said = capsys.readouterr().out
    assert f"Usage: tidelog {command}" in said
    assert f"Examples:\n    tidelog {command}" in said


def test_no_arguments_show_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([], Surroundings()) == 0
    said = capsys.readouterr().out
    assert all(f"  {command} " in said for command in PLAIN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fly",), "error: no such command 'fly'\nhint: `tidelog --help` lists the commands"),
        (
            ("read",),
            "error: Missing argument 'TOPIC[:P]'\nhint: `tidelog read --help` shows the options",
        ),
        (("topics", "--format", "xml"), "`tidelog topics --help`"),
        (("topics", "--no-such"), "No such option"),
        (("read", "t", "--last", "5"), "hint: did you mean --tail? `tidelog read --help`"),
        (("latency", "t", "--json"), "hint: did you mean --format json?"),
        (("groups", "-b", "h:1"), "hint: options follow a command: `tidelog groups delete|"),
        (("topics", "--formt", "csv"), "hint: did you mean --format? `tidelog topics --help`"),
        (("read", "t", "--kye", "5"), "hint: did you mean --key? `tidelog read --help`"),
        (("read", "t", "--lim", "5"), "hint: did you mean --limit? `tidelog read --help`"),
        (("read", "t", "--wider"), "'--wider'\nhint: did you mean --wide? `tidelog read --help`"),
        (("read", "t", "--foo"), "No such option '--foo'\nhint: `tidelog read --help` shows"),
        (("offsets", "flights"), "--at"),
        (
            ("rewind", "-b", "h:9092", "g"),
            "hint: give --group GROUP; `tidelog groups list --bootstrap h:9092` lists the groups",
        ),
    ],
)
def test_usage_errors_exit_with_3_and_a_hint(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    result = cli.run(*arguments)
    assert result.code == 3
    assert message in result.err
    assert [line.partition(": ")[0] for line in result.err.splitlines()] == ["error", "hint"]
    assert result.out == ""


SHOWS = "only shows its changes;"
MAKES = "makes its changes;"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            "compact --dry-run",
            f"did you mean --plan? by default, `tidelog compact` {MAKES} --plan only shows",
        ),
        ("compact --yes", f"by default, `tidelog compact` {MAKES} --plan only shows them"),
        (
            "retain --execute",
            f"did you mean --yes? by default, `tidelog retain` {MAKES} --dry-run only shows",
        ),
        (
            "retain --plan",
            f"did you mean --dry-run? by default, `tidelog retain` {MAKES} --dry-run only",
        ),
        (
            "delete-records t --dry-run",
            f"by default, `tidelog delete-records` {SHOWS} --yes applies them",
        ),
        (
            "delete-records t --execute",
            f"did you mean --yes? by default, `tidelog delete-records` {SHOWS}",
        ),
        ("rewind --dry-run", f"by default, `tidelog rewind` {SHOWS} --execute applies them"),
        (
            "erase --yes",
            f"did you mean --execute? by default, `tidelog erase` {SHOWS} --execute applies them",
        ),
        (
            "groups delete g -y",
            f"did you mean --yes? by default, `tidelog groups delete` {SHOWS} --yes",
        ),
        ("topics --yes", "`tidelog topics --help` shows the options"),
    ],
)
def test_an_option_to_make_or_only_show_changes_is_answered_with_the_commands_own(
    cli: Cli, line: str, hint: str
) -> None:
    result = cli.run(*line.split())
    assert result.code == ExitCode.USAGE
    assert result.err.splitlines()[1].startswith(f"hint: {hint}")


@pytest.mark.parametrize("group", ["groups", "spark", "standby"])
def test_a_group_without_a_command_shows_its_help(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([group, "--help"], Surroundings()) == ExitCode.OK
    wanted = capsys.readouterr().out
    assert run([group], Surroundings()) == ExitCode.OK
    assert tuple(capsys.readouterr()) == (wanted, "")


def test_without_a_directory_the_way_to_name_one_is_reported() -> None:
    err = io.StringIO()
    assert run(["topics"], Surroundings(stderr=err)) == 3
    assert err.getvalue() == "error: no directory; give --data DIR or set TIDELOG_DATA\n"


def test_a_directory_that_does_not_exist_is_not_made(cli: Cli) -> None:
    result = cli.run("produce", "flights", "--from", "-")
    assert result.code == 3
    assert "no such directory; `tidelog create TOPIC --data" in result.err
    assert not cli.data.exists()


@pytest.mark.parametrize("command", ["topics", "describe", "create"])
def test_a_file_is_not_a_directory(cli: Cli, command: str) -> None:
    cli.data.write_text("")
    result = cli.run(command, *(() if command == "topics" else ("flights",)))
    assert (result.code, result.err) == (3, f"error: {cli.data} is not a directory\n")


def test_the_directory_can_be_set_in_the_environment(
    flights: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDELOG_DATA", str(flights.data))
    assert run(["topics", "-o", "json"], Surroundings()) == 0
    assert json.loads(capsys.readouterr().out)["topic"] == "flights"


def test_the_error_of_a_second_writer_names_the_process_with_the_lock(flights: Cli) -> None:
    from tidelog.directory import Directory

    with Directory.open(str(flights.data), writable=True, env=flights.env):
        result = flights.run("create", "other")
        assert result.code == 1
        assert "this process has it open for writing" in result.err
        assert flights.run("topics").code == 0, "reading needs no lock"


_OBJECT = "s3://bucket/logs/t-1/0/0-1/0.log#1-0123abcd"
_VERIFY = "`tidelog tier --verify` finds missing and damaged objects"


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (UnknownTopic("no topic 'x'"), "`tidelog topics` lists topics and partitions"),
        (CorruptBatch("bad", at=3), "`tidelog doctor` lists all damage and what to do"),
        (
            DamagedLog("bad", path="a.log", position=0, offset=0),
            "`tidelog doctor --repair` moves damaged bytes to a separate file",
        ),
        (
            CorruptFile("bad", path="a b.log"),
            "`tidelog dump 'a b.log'` shows the undamaged part",
        ),
        (
            CorruptBatch("bad", path="my logs/t.a-3/0.log"),
            "`tidelog doctor t.a:3 --data 'my logs'` lists the damage and what to do",
        ),
        (
            CorruptFile("bad", path="t-3/0.appendtime"),
            "`tidelog doctor t:3 --data .` lists the damage and what to do",
        ),
        (
            CorruptFile("not JSON", path="d/tidelog-topics.json"),
            "`tidelog doctor` lists all damage and what to do",
        ),
        (CorruptFile("too short", path="checkpoint/offsets.map"), ""),
        (CorruptFile("bad; `tidelog tier t:0 --restore` rebuilds it", path="t-0/x.log"), ""),
        (StorageFailure("s3:", "open", "no URL; check the bucket's name"), ""),
        (
            NotAuthorized("h:1", "read group g", "denied", error_code=30),
            "the client's user lacks the right for this; `tidelog acls add` grants rights",
        ),
        (
            StorageFailure("f", "sync", "EIO"),
            "check the disk: space, permissions, the system's log",
        ),
        (StorageFailure("s3://bucket/logs/a.log", "read", "refused; check the bucket"), ""),
        (MissingFile(_OBJECT, "read", "gone; run `tidelog tier --verify`"), ""),
        (CorruptBatch("bad", path=_OBJECT), _VERIFY),
        (ClockJump(1, 2, "(--accept-clock goes on as it is)"), ""),
        (TidelogError("two\nlines"), ""),
    ],
)
def test_an_error_is_one_line_with_a_hint(error: TidelogError, next_step: str) -> None:
    code, text, hint = problems.describe(error)
    assert code == ExitCode.ERROR
    assert text == " ".join(str(error).split())
    assert hint == next_step


def test_denied_permission_names_the_file_and_what_to_check() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "data/flights-0/0.log")
    assert problems.describe(as_storage_failure(denied, "data", "read")) == (
        ExitCode.ERROR,
        "data/flights-0/0.log: read failed: Permission denied",
        "check the owner and mode of the file and of its directory",
    )


@pytest.mark.parametrize("kind", [NotADirectoryError, FileExistsError])
def test_a_file_in_place_of_a_directory_is_no_fault_of_the_disk(kind: type[OSError]) -> None:
    code = errno.ENOTDIR if kind is NotADirectoryError else errno.EEXIST
    failure = as_storage_failure(kind(code, os.strerror(code), "file"), "file", "open")
    failure.__cause__ = kind()
    assert problems.describe(failure).hint == "give the path of a directory"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ("read", "flights", "-n", "-1"),
            ("Invalid value for '--limit' / '-n': -1; must be 0 or more", "`tidelog read --help`"),
        ),
        (
            ("users", "add", "a", "--bootstrap", "h:1", "--iterations", "1"),
            ("'--iterations': 1; must be 4096 to 16384", "`tidelog users add --help`"),
        ),
        (("read", "flights", "-n", "x"), ("'x' is not a whole number", "`tidelog read --help`")),
        (("lag", "-b", "h:1", "--max-seconds", "x"), ("'x' is not a number", "`tidelog lag")),
        (
            ("read", "flights", "-o", "jsn"),
            ("'jsn' is not one of", "did you mean json? `tidelog read --help` shows the options"),
        ),
        (("read", "flights", "-o", "xml"), ("'xml' is not one of", "`tidelog read --help` shows")),
    ],
)
def test_invalid_values_of_options_are_explained_in_words(
    cli: Cli, arguments: tuple[str, ...], lines: tuple[str, str]
) -> None:
    result = cli.run(*arguments)
    error, hint = result.err.splitlines()
    assert result.code == ExitCode.USAGE
    assert error.startswith("error: ")
    assert lines[0] in error
    assert hint.startswith(f"hint: {lines[1]}")


def test_a_record_above_the_limit_names_the_setting(cli: Cli) -> None:
    cli.ok("create", "small", "--config", "max.message.bytes=100")
    refused = cli.run("produce", "small", "--from", "-", stdin=b"x" * 200)
    assert "error: stdin line 1: a batch of " in refused.err
    hint = f"hint: `tidelog config TOPIC --set max.message.bytes=SIZE --data {cli.data}`"
    assert hint in refused.err


def test_internal_errors_are_raised(cli: Cli) -> None:
    """An internal error must be raised with its traceback."""
    cli.ok("create", "flights")

    def fail(_seconds: float) -> None:
        raise ZeroDivisionError("ours")

    cli.wait = fail
    with pytest.raises(ZeroDivisionError):
        cli.run("read", "flights", "--follow")


def test_an_interrupted_command_exits_as_shells_expect(cli: Cli) -> None:
    class Interrupted(io.BytesIO):
        def __next__(self) -> bytes:
            raise KeyboardInterrupt

    cli.ok("create", "flights")
    stderr = io.StringIO()
    surroundings = Surroundings(env=cli.env, stdin=Interrupted(), stderr=stderr)
    arguments = ["produce", "flights", "--from", "-", "--data", str(cli.data)]
    assert run(arguments, surroundings) == 130
    assert stderr.getvalue() == "interrupted; at least 0 rows were appended\n"


@pytest.mark.parametrize(
    ("variables", "is_bold"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_only_on_terminals_that_want_it(
    flights: Cli, variables: dict[str, str], is_bold: bool
) -> None:
    flights.on_terminal = True
    flights.variables = variables
    assert ("\x1b[1m" in flights.ok("topics").out) is is_bold
    flights.on_terminal = False
    assert "\x1b" not in flights.ok("topics").out


def test_waiting_ends_after_its_time() -> None:
    wait_seconds(0)


def loaded(*arguments: str) -> set[str]:
    """Run a command in its own process; return the large modules that the process has loaded."""
    code = (
        "import sys\n"
        "from tidelog.cli.app import run\n"
        "from tidelog.cli.surroundings import Surroundings\n"
        "code = run(sys.argv[1:], Surroundings())\n"
        "print(code, *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    code_text, *modules = done.stderr.splitlines()[-1].split()
    assert code_text == "0", done.stderr
    return set(modules)


def test_help_loads_no_storage() -> None:
    modules = loaded("--help")
    assert not modules & {
        *HEAVY,
        "tidelog.directory",
        "tidelog.storage.log.log",
        "tidelog.timespec",
    }


def test_a_command_loads_no_other_command() -> None:
    homes = {f"tidelog.cli.{home}" for home, _ in (*COMMANDS.values(), *JOBS.values())}
    assert not loaded("--help") & homes
    assert not loaded("spark", "--help") & homes
    assert loaded("serve", "--help") & homes == {"tidelog.cli.serve"}


@pytest.mark.parametrize(("prefix", "table"), [((), COMMANDS), (("spark",), JOBS)])
def test_the_table_of_commands_has_each_commands_own_summary(
    prefix: tuple[str, ...], table: dict[str, tuple[str, str]]
) -> None:
    group = resolved(app, *prefix) if prefix else app
    for name, (_, line) in table.items():
        command = resolved(group, name)
        assert command.name == name
        assert " ".join((command.help or "").partition("\n\n")[0].split()) == line


def resolved(group: click.Command, name: str) -> click.Command:
    """Return the command that this name selects in a group."""
    assert isinstance(group, click.Group)
    command = group.resolve_command(click.Context(group), [name])[1]
    assert command is not None
    return command


@pytest.mark.unmeasured
def test_a_broker_loads_no_objects_and_nothing_heavy_before_it_listens() -> None:
    code = "import sys; from tidelog.cli import serve; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    modules = set(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    needless = {"tidelog.directory", "tidelog.objects", "tidelog.scan", "tomllib", "tempfile"}
    assert not modules & {*HEAVY, *needless}


def test_plain_commands_load_nothing_heavy(flights: Cli) -> None:
    flights.ok("produce", "flights", "--from", "-", stdin=b"x\n")
    modules = loaded("read", "flights", "--data", str(flights.data))
    assert "tidelog.storage.log.log_reader" in modules
    assert not modules & set(HEAVY)


def test_a_reader_that_has_enough_ends_the_command_well(flights: Cli, tmp_path: Path) -> None:
    flights.ok("produce", "flights", "--from", "-", stdin=b"x" * 99 + b"\n" * 5_000)
    command = [sys.executable, "-m", "tidelog.cli.app", "read", "flights", "--wide"]
    command += ["--data", str(flights.data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


@pytest.mark.parametrize("arguments", [["--help"], ["read", "--help"], ["--version"]])
def test_help_for_a_closed_reader_ends_without_an_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tidelog.cli.app", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_without_arguments_on_a_full_disk_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "tidelog.cli.app"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (
        ExitCode.ERROR,
        b"error: No space left on device\n",
    )


def test_a_broken_connection_of_a_command_is_an_error(cli: Cli) -> None:
    cli.ok("create", "flights")

    def send(_seconds: float) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            theirs.close()
            ours.sendall(b"x")

    cli.wait = send
    result = cli.run("read", "flights", "--follow")
    assert (result.code, result.err) == (ExitCode.ERROR, "error: Broken pipe\n")


def test_a_system_exit_of_a_command_keeps_its_code(cli: Cli) -> None:
    cli.ok("create", "flights")

    def leave(_seconds: float) -> None:
        sys.exit(7)

    cli.wait = leave
    with pytest.raises(SystemExit) as caught:
        cli.run("read", "flights", "--follow")
    assert caught.value.code == 7


def test_completion_for_an_unknown_shell_is_an_error() -> None:
    command = [sys.executable, "-m", "tidelog.cli.app"]
    variables = {**os.environ, "_TIDELOG_COMPLETE": "noshell_source"}
    assert subprocess.run(command, env=variables, check=False).returncode == 1


def test_every_command_has_a_page() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in PLAIN:
        assert f"tidelog {command}" in text, command


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_to_a_closed_stream_is_dropped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python sets `sys.stdout` to None if a shell has closed it (`>&-`): commands still run."""
    monkeypatch.setattr(sys, name, None)
    missing = str(tmp_path / "missing.properties")
    assert run(["serve", "--config", missing], Surroundings()) == ExitCode.USAGE
    assert run(["create", "flights", "--data", str(tmp_path / "log")], Surroundings()) == 0
    assert run(["topics", "--data", str(tmp_path / "log")], Surroundings()) == 0


def test_error_lines_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    place = "/not/\x1b]0;title\x07\x1b[31m\u202ethere"
    assert run(["read", "t", "--data", place], Surroundings()) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert "/not/\\x1b]0;title\\x07\\x1b[31m\\u202ethere" in told
    assert told.strip("\n").isprintable()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--at", "now"), "--at applies only with --table; --from TIME reads records from a time"),
        (("--zone", "Berlin"), "--zone Berlin: not a time zone; did you mean Europe/Berlin?"),
    ],
)
def test_a_wrong_option_of_read_has_advice(
    flights: Cli, options: tuple[str, ...], text: str
) -> None:
    result = flights.run("read", "flights", *options)
    assert result.code == ExitCode.USAGE
    assert result.err.startswith(f"error: {text}")
