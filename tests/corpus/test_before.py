"""The code of an earlier commit opens the directories that today's code writes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.corpus.before.archives import commit, names
from tests.corpus.stage import ROOT
from tests.worlds.needs import need

pytestmark = pytest.mark.slow


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def run(tree: Path, *arguments: str) -> str:
    """Run a command of `tests.corpus.before` with the code of a work tree; return its output."""
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    command = [sys.executable, "-m", "tests.corpus.before", *arguments]
    variables = {**os.environ, "PYTHONPATH": path, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=tree, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A work tree of the earlier commit."""
    is_known = git("cat-file", "-e", f"{commit()}^{{commit}}").returncode == 0
    need(is_known, f"git and a clone whose history contains the commit {commit()}")
    place = tmp_path_factory.mktemp("before") / "tree"
    added = git("worktree", "add", "--detach", str(place), commit())
    assert added.returncode == 0, added.stderr
    yield place
    git("worktree", "remove", "--force", str(place))


@pytest.mark.parametrize("name", names())
def test_earlier_code_reads_directories_written_now(name: str, tree: Path, tmp_path: Path) -> None:
    made, copy = tmp_path / "made", tmp_path / "copy"
    run(ROOT, "lay", name, str(made))
    subprocess.run(["cp", "-a", str(made), str(copy)], check=True)
    now = json.loads(run(ROOT, "ask", str(made)))
    before = json.loads(run(tree, "ask", str(copy)))
    assert before == now
