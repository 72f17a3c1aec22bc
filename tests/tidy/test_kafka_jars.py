"""Maven's download of Apache Kafka's jars is retried after a temporary failure."""

import os
from pathlib import Path

import pytest
from tests.worlds.kafka import home

# Stand-in for Maven that records its calls. The file `failures` has the number of first calls that
# fail; each later call provides one jar.
MVN = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
[ "$(grep -c . "$here/calls")" -gt "$(cat "$here/failures")" ] || { echo "no route" >&2; exit 1; }
for word; do
    case $word in -DoutputDirectory=*) : >"${word#*=}/kafka-clients-4.jar" ;; esac
done
"""


def fetch(folder: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> list[bool]:
    """Fetch into a folder; return for each call of Maven whether it ignored cached failures."""
    mvn = folder / "bin" / "mvn"
    mvn.parent.mkdir()
    mvn.write_text(MVN)
    mvn.chmod(0o755)
    (mvn.parent / "failures").write_text(str(failures))
    monkeypatch.setenv("PATH", f"{mvn.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (folder / "jars").mkdir()
    try:
        home._fetch_jars(folder / "jars")
    finally:
        calls = (mvn.parent / "calls").read_text().splitlines()
    assert list((folder / "jars").iterdir())
    return ["-U" in call.split() for call in calls]


@pytest.mark.parametrize("failures", range(len(home.FETCHES)))
def test_a_failed_download_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    assert fetch(tmp_path, monkeypatch, failures) == [False, *[True] * failures]


def test_a_download_that_always_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(home.Unavailable, match="mvn failed: no route"):
        fetch(tmp_path, monkeypatch, len(home.FETCHES))
