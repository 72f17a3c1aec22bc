"""Messages on stderr: labels, colors, line breaks, hints and interrupts."""

import ast
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.worlds.command_line import Cli, Terminal

from tidelog.cli import surroundings as messages
from tidelog.cli.app import COMMANDS, JOBS, _with_place, app, run
from tidelog.cli.options import option_names
from tidelog.cli.surroundings import (
    ExitCode,
    Interrupted,
    InvalidInput,
    Surroundings,
    UsageProblem,
    describe,
    interrupted_as,
)
from tidelog.errors import (
    ClusterFailure,
    InvalidTime,
    OffsetOutOfRange,
    TidelogError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
)


def printed(
    method: str, *texts: str, terminal: bool = True, variables: dict[str, str] | None = None
) -> str:
    raw = io.BytesIO()
    kind = Terminal if terminal else io.TextIOWrapper
    stderr = kind(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(stderr=stderr, variables=variables or {})
    getattr(surroundings, method)(*texts)
    return raw.getvalue().decode()


def test_labels_of_messages() -> None:
    assert printed("say", "created flights", terminal=False) == "created flights\n"
    assert printed("note", "2 records left out", terminal=False) == "note: 2 records left out\n"
    assert printed("fail", "no topic", "see", terminal=False) == "error: no topic\nhint: see\n"


def test_colors_on_a_terminal() -> None:
    assert printed("fail", "no topic", "see") == (
        "\x1b[1;31merror:\x1b[0m no topic\n\x1b[1;36mhint:\x1b[0m see\n"
    )
    assert printed("note", "left out") == "\x1b[2mnote: left out\x1b[0m\n"
    assert printed("say", "created") == "created\n"


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colors_can_be_switched_off(variables: dict[str, str]) -> None:
    assert printed("fail", "no topic", variables=variables) == "error: no topic\n"


def test_long_lines_break_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_width_of", lambda _stream: 30)
    path = "/a/path/that-is-longer/than-the-terminal/is-wide"
    lines = printed("fail", f"{path}: there is no such directory", variables={"NO_COLOR": "1"})
    assert lines.splitlines() == ["error:", f"  {path}:", "  there is no such directory"]
    assert printed("say", "word " * 20, terminal=False).count("\n") == 1


@pytest.mark.parametrize("name", ["say", "note", "fail", "hint"])
def test_messages_have_no_control_characters(name: str) -> None:
    text = printed(name, "a\x1b]0;title\x07\nb", variables={"NO_COLOR": "1"})
    assert "a\\x1b]0;title\\x07\\nb" in text


def test_a_hint_stands_on_its_own_line(flights: Cli) -> None:
    result = flights.run("describe", "flihgts")
    assert result.err == (
        "error: no topic 'flihgts'; did you mean flights?\n"
        f"hint: `tidelog topics --data {flights.data}` lists topics and partitions\n"
    )


def test_a_partition_that_does_not_exist(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "2")
    for arguments in (
        ("read", "flights", "--partition", "9"),
        ("count", "flights:9"),
        ("why", "flights:9"),
        ("doctor", "flights:9"),
    ):
        result = cli.run(*arguments)
        assert "flights has partitions 0 to 1, not 9\n" in result.err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("serve /data/log", "give the directory of topics as an option: --data /data/log"),
        ("accept-clock log", "give the directory of topics as an option: --data log"),
        ("topics ./log", "give the directory of topics as an option: --data ./log"),
        ("describe ./log flights", "give the directory of topics as an option: --data ./log"),
        (
            "topics flights",
            "`tidelog topics` lists all topics; `tidelog describe flights` shows one topic",
        ),
        ("topics b:9092", "give the cluster as an option: --bootstrap b:9092"),
        ("count flights b:9092", "give the cluster as an option: --bootstrap b:9092"),
        ("read flights 0", "did you mean --partition 0?"),
        ("create flights 4", "did you mean --partitions 4?"),
        ("config flights retention.ms=1d", "did you mean --set retention.ms=1d?"),
        ("delete flights now", "`tidelog delete --help` shows the options"),
    ],
)
def test_a_misplaced_argument_gets_the_option(
    typed: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split(), Surroundings()) == ExitCode.USAGE
    error, hinted = capsys.readouterr().err.splitlines()
    assert error.startswith("error: Got unexpected extra argument (")
    assert hinted == f"hint: {hint}"


def test_the_directory_of_the_environment_is_not_taken_for_a_misplaced_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDELOG_DATA", "/data/log")
    err = io.StringIO()
    assert run(["latency", "flights", "--late", "6h"], Surroundings(stderr=err)) == ExitCode.USAGE
    assert "/data/log" not in err.getvalue()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ls", "topics"),
        ("list", "topics"),
        ("topic", "topics"),
        ("kafka-topics.sh", "topics"),
        ("consume", "read"),
        ("tail", "read"),
        ("group", "groups"),
        ("console-producer", "produce"),
        ("reaad", "read"),
        ("replay", "spark replay"),
        ("groups ls", "groups list"),
        ("groups rm", "groups delete"),
        ("users rm", "users remove"),
        ("acls delete", "acls remove"),
        ("help tail", "read"),
        ("spark repla", "spark replay"),
    ],
)
def test_an_unknown_command_gets_a_hint(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split(), Surroundings()) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"error: no such command {typed.split()[-1]!r}\nhint: did you mean `tidelog {meant}`?\n"
    )


def test_names_of_other_tools_lead_to_commands() -> None:
    from tidelog.cli.command_groups import OTHER_NAMES

    assert set(OTHER_NAMES.values()) <= COMMANDS.keys()
    assert not OTHER_NAMES.keys() & COMMANDS.keys()
    assert not OTHER_NAMES.keys() & JOBS.keys()


def test_help_and_the_option_help_print_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("read",), ("groups", "list"), ("spark", "replay")):
        assert run([*words, "--help"], Surroundings()) == ExitCode.OK
        wanted = capsys.readouterr().out
        assert run(["help", *words], Surroundings()) == ExitCode.OK
        assert capsys.readouterr().out == wanted
    assert run(["help", "read", "x"], Surroundings()) == ExitCode.USAGE


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tidelog", "--version"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"tidelog")


@pytest.mark.parametrize(
    ("arguments", "effect"),
    [
        (("doctor", "DATA"), "nothing was changed"),
        (("doctor", "DATA", "--repair"), "records are unchanged; repeat --repair to finish"),
        (("topics",), None),
    ],
)
def test_the_message_of_an_interrupt_states_the_changes(
    flights: Cli, arguments: tuple[str, ...], effect: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidelog.storage.checks.DirectoryCheck", interrupt)
    monkeypatch.setattr("tidelog.cli.topics.open_topics", interrupt)
    words = [word.replace("DATA", str(flights.data)) for word in arguments]
    result = flights.run(*words)
    text = "interrupted" if effect is None else f"interrupted; {effect}"
    assert (result.code, result.err) == (ExitCode.INTERRUPTED, f"{text}\n")


def test_an_effect_replaces_a_plain_interrupt() -> None:
    with pytest.raises(Interrupted, match="nothing"), interrupted_as("nothing was changed"):
        raise KeyboardInterrupt


def test_ctrl_c_ends_read_follow_well(flights: Cli) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    flights.wait = interrupt
    assert flights.run("read", "flights", "--follow").code == ExitCode.OK


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("topics --bootstrap east:1", "check --bootstrap, --command-config and --timeout"),
        ("groups list --bootstrap east:1", "check --bootstrap, --command-config and --timeout"),
        (
            "spark mirror kafka://east:1 orders --to DATA --checkpoint c",
            "check the brokers' address, --command-config and --to-command-config",
        ),
        ("spark latency kafka://east:1", "check the brokers' address and --command-config"),
    ],
)
def test_a_hint_names_only_options_of_the_failed_command(
    flights: Cli, command: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_more: object) -> None:
        raise ClusterFailure("east:1", "list topics", "_TRANSPORT")

    for module in ("cluster", "remote_directory"):
        monkeypatch.setattr(f"tidelog.remote.{module}.connect", fail)
    result = flights.run(*command.replace("DATA", str(flights.data)).split())
    assert result.err == f"error: east:1: could not list topics: _TRANSPORT\nhint: {hint}\n"


def test_changes_made_before_an_error_are_a_note(
    flights: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ClusterFailure("east:1", "append", "_TIMED_OUT")
    error.add_note("despite this error, 2 records of the call were appended to the log")

    def fail(*_given: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr("tidelog.remote.remote_directory.connect", fail)
    lines = flights.run("topics", "--bootstrap", "east:1").err.splitlines()
    assert lines[-1] == "note: despite this error, 2 records of the call were appended to the log"


def _texts() -> Iterator[str]:
    """Yield each text of tidelog's source; `{}` stands for a value of an f-string."""
    for path in Path(messages.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.JoinedStr(values):
                    parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in values)
                    yield "".join(map(str, parts))
                case ast.Constant(str(text)):
                    yield text


def _unknown_part(words: str) -> str | None:
    """Return the command or option of `tidelog WORDS` that does not exist, None if all exist."""
    command: click.Command = app
    for word in re.sub(r"\{[^}]*\}", " X ", words).split():
        if word.startswith("--") and not isinstance(command, click.Group):
            if word.partition("=")[0] not in option_names(command):
                return f"{command.name} {word}"
        elif isinstance(command, click.Group) and re.fullmatch("[a-z][a-z-]*", word):
            if word not in command.commands:
                return word
            _, found, _ = command.resolve_command(click.Context(command), [word])
            assert found is not None
            command = found
    return None


def test_the_commands_that_texts_name_exist() -> None:
    named = {one for text in _texts() for one in re.findall(r"`tidelog ([^`]*)`", text)}
    assert len(named) > 50
    assert {one: part for one in named if (part := _unknown_part(one)) is not None} == {}


@pytest.mark.parametrize("kind", [UnknownTopic, UnknownGroup, OffsetOutOfRange, TopicExists])
@pytest.mark.parametrize("place", [(), ("--data", "my logs"), ("--bootstrap=h:9092",)])
def test_hints_name_commands_with_their_options(
    kind: type[TidelogError], place: tuple[str, ...]
) -> None:
    hint = describe(kind.__new__(kind), {"--bootstrap", "--data"}).hint
    completed = _with_place(["read", "flights", *place], hint)
    assert [_unknown_part(one) for one in re.findall(r"`tidelog ([^`]*)`", completed)] == [None]
    options = {(): "", ("--bootstrap=h:9092",): " --bootstrap h:9092`"}.get(place, " 'my logs'`")
    assert (options in completed) or (kind is UnknownGroup and "--data" in place)


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("run `tidelog doctor --repair`", "run `tidelog doctor --repair -d x`"),
        ("`tidelog why TOPIC:P` explains", "`tidelog why TOPIC:P -d x` explains"),
        ("`tidelog dump FILE` shows", None),
        ("`tidelog groups list` lists", None),
        ("`tidelog config t --data other` shows", None),
        ("`tidelog read --help` shows", None),
        ("`tidelog read` reads", None),
        ("`tidelog nothing` is unknown", None),
    ],
)
def test_commands_in_messages_get_the_directory(text: str, completed: str | None) -> None:
    expected = text if completed is None else completed.replace("-d x", "--data logs")
    assert _with_place(["read", "t", "-d", "logs"], text) == expected
    assert _with_place(["read", "t"], text) == text


def test_a_hint_of_a_command_can_be_copied(flights: Cli) -> None:
    data = str(flights.data)
    err = io.StringIO()
    surroundings = Surroundings(stdout=io.StringIO(), stderr=err, variables={})
    assert run(["why", "flights", "--data", data, "-o", "table"], surroundings) == 0
    assert run(["read", "nope", "-d", data], surroundings) == ExitCode.ERROR
    assert f"hint: `tidelog topics --data {data}` lists topics" in err.getvalue()


def test_only_a_missing_zone_gets_the_hint_on_zones() -> None:
    words = "the time zone is missing"
    assert describe(UsageProblem(f"no column {words!r}"), {"--zone"}).hint == ""
    missing = InvalidTime("2024-05-01T12:00", words, is_zone_missing=True)
    wrapped = InvalidInput("row 1: no time")
    wrapped.__cause__ = missing
    for error in (missing, wrapped):
        hint = "--zone ZONE sets the zone of all times without one"
        assert describe(error, {"--zone"}).hint == hint
        assert describe(error).hint == ""
