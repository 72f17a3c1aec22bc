"""`tidelog compact --plan` tells what would be done, and changes nothing."""

import io
import json
from pathlib import Path

import pytest

import tidelog
from tidelog.cli.main import run
from tidelog.cli.problems import ExitCode
from tidelog.cli.surroundings import Surroundings


def _fill(path: Path, scheduler: str) -> None:
    with tidelog.open(str(path), writable=True) as log:
        config = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "2000",
            "tidelog.compaction.scheduler": scheduler,
            "tidelog.compaction.space.factor": "1.5",
        }
        log.create_topic("t", config=config)
        for number in range(60):
            key = b"%d" % (number % 5)
            log.append("t", [tidelog.NewRecord(key=key, value=b"v" * 100)])


def _show(path: Path) -> tuple[list[dict[str, object]], str]:
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    code = run(["compact", "t", "--data", str(path), "--plan", "-o", "json"], surroundings)
    assert code == ExitCode.OK, err.getvalue()
    return [json.loads(line) for line in raw.getvalue().splitlines()], err.getvalue()


@pytest.mark.parametrize("scheduler", ["brute-force", "generational"])
def test_a_plan_has_a_row_for_each_segment(tmp_path: Path, scheduler: str) -> None:
    _fill(tmp_path, scheduler)
    before = sorted((p.name, p.stat().st_size) for p in (tmp_path / "t-0").iterdir())
    rows, told = _show(tmp_path)
    assert len(rows) > 2
    assert {row["decision"] for row in rows} == {"clean"}
    # Five keys: of every finished segment but the last one nothing is alive.
    assert [row["garbage_bytes"] for row in rows[:-1]] == [row["bytes"] for row in rows[:-1]]
    assert sum(int(str(row["keys"])) for row in rows) == 5
    assert "t-0: due" in told
    assert sorted((p.name, p.stat().st_size) for p in (tmp_path / "t-0").iterdir()) == before
