"""Each mistake has the same exit code in all commands, as listed in docs/cli.md.

Commands on Spark report a mistake before Spark starts.
"""

import re
from pathlib import Path

import pytest
from tests.corpus.surface_help import helps
from tests.worlds.command_line import Cli, at

from tidelog.cli.surroundings import ExitCode

# Command lines by name; words in capitals, such as DATA, are placeholders.
COMMANDS = {
    "topics": "topics --data DATA",
    "describe": "describe TOPIC --data DATA",
    "read": "read TOPIC --data DATA",
    "offsets": "offsets TOPIC --data DATA --at now",
    "why": "why TOPIC --data DATA",
    "compact": "compact TOPIC --data DATA",
    "spark replay": "spark replay DATA TOPIC --to OTHER",
    "spark replay to": "spark replay OTHER flights --to DATA --to-topic TOPIC",
    "spark bootstrap": "spark bootstrap TABLE TOPIC --to DATA",
    "spark latency": "spark latency DATA TOPIC",
    "spark reindex": "spark reindex DATA TOPIC",
    "spark compact": "spark compact DATA TOPIC",
    "spark mirror": "spark mirror DATA TOPIC --to OTHER --checkpoint CHECKPOINT",
    "audit": "audit DATA OTHER",
}
ON_SPARK = [name for name in COMMANDS if name.startswith("spark ") or name == "audit"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made.ok("create", "flights")
    made.append(at(1_700_000_000_000))
    Cli(tmp_path / "other").ok("create", "flights")
    (tmp_path / "table.parquet").touch()
    return made


def run(cli: Cli, name: str, data: Path, topic: str, *more: str) -> tuple[int, str]:
    words = {
        "DATA": str(data),
        "OTHER": f"{cli.data}/../other",
        "TOPIC": topic,
        "TABLE": f"{cli.data}/../table.parquet",
        "CHECKPOINT": f"{cli.data}/../checkpoint",
    }
    result = cli.run(*(words.get(word, word) for word in COMMANDS[name].split()), *more)
    assert "is up at" not in result.err  # Spark has not started
    return result.code, result.err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_directory_that_does_not_exist(cli: Cli, name: str, tmp_path: Path) -> None:
    code, told = run(cli, name, tmp_path / "nowhere", "flights")
    assert (code, "nowhere" in told) == (ExitCode.USAGE, True)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", [name for name, text in COMMANDS.items() if "TOPIC" in text])
def test_a_topic_that_does_not_exist(cli: Cli, name: str) -> None:
    code, told = run(cli, name, cli.data, "flihgts")
    assert (code, "did you mean flights?" in told) == (ExitCode.ERROR, True)


@pytest.mark.parametrize(
    "line",
    [
        "count flights:7",
        "delete-records flights:7 --offset 0",
        "describe flights:7",
        "diff flights:7 --from 2020-01-01Z --to now",
        "latency flights:7",
        "offsets flights:7 --at now",
        "produce flights --partition 7 --value 1",
        "read flights:7",
        "why flights:7",
    ],
)
def test_a_partition_that_does_not_exist(cli: Cli, line: str) -> None:
    result = cli.run(*line.split(), "--data", str(cli.data))
    assert (result.code, "topic flights has only partition 0, not 7" in result.err) == (1, True)


@pytest.mark.parametrize("name", ON_SPARK)
def test_a_setting_that_is_none(cli: Cli, name: str) -> None:
    assert run(cli, name, cli.data, "flights", "--conf", "nonsense")[0] == ExitCode.USAGE


@pytest.mark.parametrize("name", [n for n in ON_SPARK if n not in ("spark compact", "audit")])
def test_a_report_in_a_folder_that_does_not_exist(cli: Cli, name: str, tmp_path: Path) -> None:
    file = str(tmp_path / "no" / "report.html")
    code, told = run(cli, name, cli.data, "flights", "--report", file)
    assert (code, "no: No such file" in told) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    "command",
    [
        "produce flights --data DATA --from FILE",
        "spark bootstrap FILE flights --to DATA",
        "lag g --bootstrap 127.0.0.1:1 --command-config FILE",
        "serve --config FILE",
        "dump FILE",
        "spark latency DATA flights --report FILE/report.html",
    ],
)
def test_a_file_that_does_not_exist(cli: Cli, command: str, tmp_path: Path) -> None:
    file = f"{tmp_path}/nothing.parquet"
    words = (word.replace("FILE", file).replace("DATA", str(cli.data)) for word in command.split())
    result = cli.run(*words)
    assert (result.code, "nothing.parquet: " in result.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("audit DATA OTHER --topic flihgts", 2, "no topic matches flihgts"),
        ("audit DATA OTHER --topic (", ExitCode.USAGE, "topic pattern '('"),
        ("audit DATA OTHER --map nowhere.map", ExitCode.USAGE, "nowhere.map: No such file"),
        ("audit DATA OTHER --group g", ExitCode.USAGE, "so the groups' positions are unknown"),
        ("audit DATA --group g", ExitCode.USAGE, "so the groups' positions are unknown"),
        ("audit DATA", ExitCode.USAGE, "give a second place (B), or a group"),
        ("audit DATA --group g --map m", ExitCode.USAGE, "an offset map can be used only with"),
        ("audit DATA OTHER --rename flights=x --rename y=x", ExitCode.USAGE, "one name on B"),
        (
            "audit DATA OTHER --state s --from now",
            ExitCode.USAGE,
            "a state folder can't be used with a time range",
        ),
        ("spark bootstrap TABLE flights --to DATA --option x", ExitCode.USAGE, "--option 'x'"),
        ("spark compact DATA flights", ExitCode.USAGE, "flights is not a compacted topic"),
        ("spark compact s3://bucket/logs", ExitCode.USAGE, "object stores are read"),
        ("spark mirror DATA flights --to EMPTY --checkpoint c", 1, "no topic 'flights'"),
        (
            "spark mirror DATA flights --to NEW --checkpoint c",
            ExitCode.USAGE,
            "new: no such directory; --create creates it",
        ),
        (
            "spark mirror DATA flights --to 127.0.0.1:9092 --checkpoint c --create",
            ExitCode.USAGE,
            "127.0.0.1:9092: no such directory; for brokers, write kafka://127.0.0.1:9092",
        ),
        (
            "spark lag east:9092,west:9092",
            ExitCode.USAGE,
            "for brokers, write kafka://east:9092,west:9092",
        ),
        (
            "spark mirror DATA --pattern x --to EMPTY --checkpoint c",
            ExitCode.USAGE,
            "no topic matches",
        ),
        ("spark mirror DATA flights --to OTHER --checkpoint TAKEN", ExitCode.USAGE, "another fold"),
        ("spark lag DATA", ExitCode.USAGE, "so the groups' positions are unknown"),
        ("spark lag DATA --group g", ExitCode.USAGE, "so the groups' positions are unknown"),
        ("spark lag DATA --data OTHER", ExitCode.USAGE, "is for a cluster"),
        ("spark reindex DATA --zone-cache DATA/zones", ExitCode.USAGE, "is inside"),
        ("spark reindex DATA --zone-cache s3://b/zones", ExitCode.USAGE, "not a URL"),
        ("spark replay DATA flights --to DATA", ExitCode.USAGE, "be replayed into itself"),
        (
            "spark replay DATA flights --to console --progress p",
            ExitCode.USAGE,
            "leave out progress",
        ),
    ],
)
def test_a_job_refuses_before_spark_starts(
    cli: Cli, command: str, code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cli.data)
    paths = {
        "DATA": str(cli.data),
        "OTHER": str(cli.data.parent / "other"),
        "TABLE": str(cli.data.parent / "table.parquet"),
        "EMPTY": str(cli.data.parent / "empty"),
        "NEW": str(cli.data.parent / "new"),
        "TAKEN": str(cli.data.parent / "taken"),
    }
    (cli.data.parent / "empty").mkdir()
    (cli.data.parent / "taken" / "spark").mkdir(parents=True)
    for name, path in paths.items():
        command = command.replace(name, path)
    result = cli.run(*command.split())
    assert (result.code, told in result.err) == (code, True), result.err
    assert "is up at" not in result.err  # Spark has not started


def test_a_topic_that_cannot_be_created_leaves_no_files(cli: Cli, tmp_path: Path) -> None:
    """A refused command leaves neither a directory nor a topic."""
    new = tmp_path / "new"
    table = str(tmp_path / "table.parquet")
    for config, code in (("retention.ms=no", ExitCode.USAGE), ("x", ExitCode.USAGE)):
        made = ("--create", "2", "--config", config)
        assert cli.run("spark", "bootstrap", table, "t", "--to", str(new), *made).code == code
        there = ("spark", "replay", str(cli.data), "flights", "--to", str(new))
        assert cli.run(*there, *made).code == code
        assert cli.run("create", "t", "--data", str(new), "--config", config).code == code
    assert cli.run("create", "a/b", "--data", str(new)).code == ExitCode.USAGE
    assert not new.exists()


def test_the_documentation_lists_all_exit_codes() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    table = text.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert [int(code) for code in codes] == sorted(ExitCode)


def test_commands_with_codes_of_their_own_are_listed() -> None:
    """docs/cli.md lists each command whose help gives exit code 1 or 3 an unusual meaning."""
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    own = text.partition("further codes of their own: ")[2].partition("\n\n")[0]
    codes = {"0": "", "1": "failed|error", "2": "", "3": "usage"}
    for path, told in helps():
        name = " ".join(path)
        for code, meaning in re.findall(r"(?:code|[;,:]) (\d):? ([a-z]+)", told):
            if code in codes and not re.search(codes[code], meaning):
                assert f"`{name}`" in own, f"{name}: {code} {meaning}"


@pytest.mark.parametrize("command", ["lag", "spark lag"])
@pytest.mark.parametrize("option", ["--max-lag", "--max-seconds"])
def test_a_negative_limit_of_a_lag_is_a_mistake(cli: Cli, command: str, option: str) -> None:
    result = cli.run(*command.split(), option, "-1")
    assert result.code == ExitCode.USAGE
    assert f"'{option}': -1" in result.err
