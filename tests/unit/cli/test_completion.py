"""Shell completion of topics, partitions and settings, by click's own protocol."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.command_line import Cli


def completed(words: str, data: Path) -> list[str]:
    """Return bash's completions of the last word."""
    parts = words.split(" ")
    variables = {
        **os.environ,
        "_TIDELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
        "TIDELOG_DATA": str(data),
    }
    command = [sys.executable, "-m", "tidelog.cli.app"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tidelog read fl", ["flights", "flown"]),
        ("tidelog count flights:", ["flights:0", "flights:1"]),
        ("tidelog compact flo", ["flown"]),
        ("tidelog config flights --set retention.b", ["retention.bytes="]),
        ("tidelog config flights --unset retention.b", ["retention.bytes"]),
        ("tidelog create new --config flush.ms", ["flush.ms="]),
        ("tidelog serve --set sasl.enabled", ["sasl.enabled.mechanisms="]),
        ("tidelog groups de", ["delete", "describe"]),
    ],
)
def test_completions_match_the_last_word(cli: Cli, words: str, offered: list[str]) -> None:
    cli.ok("create", "flights", "--partitions", "2")
    cli.ok("create", "flown")
    assert completed(words, cli.data) == offered


def test_a_nonexistent_directory_gives_no_completions(tmp_path: Path) -> None:
    assert completed("tidelog read ", tmp_path / "nowhere") == []
    assert completed("tidelog read fl", Path("s3://bucket/logs")) == []
