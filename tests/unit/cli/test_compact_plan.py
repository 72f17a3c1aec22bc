"""`tidelog compact --plan` shows the plan and changes nothing."""

import errno
import io
import json
from pathlib import Path

import pytest

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import ExitCode, Surroundings


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


def _show(path: Path, *more: str) -> tuple[list[dict[str, object]], str]:
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    code = run(["compact", "t", "--data", str(path), "--plan", "-o", "json", *more], surroundings)
    assert code == ExitCode.OK, err.getvalue()
    return [json.loads(line) for line in raw.getvalue().splitlines()], err.getvalue()


@pytest.mark.parametrize("scheduler", ["brute-force", "generational"])
def test_a_plan_has_a_row_for_each_segment(tmp_path: Path, scheduler: str) -> None:
    _fill(tmp_path, scheduler)
    before = sorted((p.name, p.stat().st_size) for p in (tmp_path / "t-0").iterdir())
    rows, told = _show(tmp_path)
    assert len(rows) > 2
    assert {row["decision"] for row in rows} == {"clean"}
    # The log has only five keys, so only its last finished segment has live records.
    assert [row["garbage_bytes"] for row in rows[:-1]] == [row["bytes"] for row in rows[:-1]]
    assert sum(int(str(row["keys"])) for row in rows) == 5
    assert "t-0: due" in told
    assert sorted((p.name, p.stat().st_size) for p in (tmp_path / "t-0").iterdir()) == before


def _told(path: Path, *more: str) -> tuple[int, str]:
    err = io.StringIO()
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    return run(["compact", "--data", str(path), "--plan", *more], surroundings), err.getvalue()


def _set(path: Path, config: dict[str, str]) -> None:
    with tidelog.open(str(path), writable=True) as log:
        log.alter_config("t", config)


@pytest.mark.parametrize("scheduler", ["brute-force", "generational"])
def test_a_topic_without_a_record_has_an_empty_plan(tmp_path: Path, scheduler: str) -> None:
    with tidelog.open(str(tmp_path), writable=True) as log:
        config = {"cleanup.policy": "compact", "tidelog.compaction.scheduler": scheduler}
        log.create_topic("t", config=config)
    rows, told = _show(tmp_path)
    assert rows == []
    assert "t-0: not due" in told


def test_no_compacted_topic_is_reported(tmp_path: Path) -> None:
    with tidelog.open(str(tmp_path), writable=True) as log:
        log.create_topic("t")
    code, told = _told(tmp_path, "-o", "json")
    assert code == ExitCode.OK
    assert told == "nothing to compact: no topic has cleanup.policy=compact\n"


def test_brute_force_is_not_planned_by_the_bound_of_generations(tmp_path: Path) -> None:
    _fill(tmp_path, "brute-force")
    surroundings = Surroundings(
        stdin=io.BytesIO(),
        stdout=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"),
        stderr=io.StringIO(),
        variables={},
    )
    assert run(["compact", "t", "--data", str(tmp_path)], surroundings) == ExitCode.OK
    _set(tmp_path, {"min.cleanable.dirty.ratio": "1.0"})
    with tidelog.open(str(tmp_path), writable=True) as log:
        for _ in range(40):
            log.append("t", [tidelog.NewRecord(key=b"0", value=b"v" * 100)])
    # This scheduler sets no limit to the size of the log relative to its live records, which are a
    # small part of this log.
    rows, told = _show(tmp_path)
    assert "t-0: not due" in told
    assert "bound" not in told
    assert {row["decision"] for row in rows} == {"keep"}
    assert sum(int(str(row["read_bytes"])) for row in rows) == 0


def test_a_generational_plan_is_due_after_the_largest_compaction_lag(tmp_path: Path) -> None:
    _fill(tmp_path, "generational")
    _set(tmp_path, {"tidelog.compaction.space.factor": "100", "max.compaction.lag.ms": "1"})
    rows, told = _show(tmp_path)
    assert "t-0: due" in told
    assert {row["decision"] for row in rows} == {"clean"}


@pytest.mark.parametrize(
    ("changes", "decision"),
    [({}, "keep"), ({"min.compaction.lag.ms": "86400000"}, "wait")],
)
def test_segments_of_a_generational_plan_that_is_not_due_are_kept_or_wait(
    tmp_path: Path, changes: dict[str, str], decision: str
) -> None:
    _fill(tmp_path, "generational")
    _set(tmp_path, {"tidelog.compaction.space.factor": "100", **changes})
    rows, told = _show(tmp_path)
    assert "t-0: not due" in told
    assert [row["decision"] for row in rows] == [decision] * len(rows)


def test_keys_of_a_topic_with_versions_are_reported_with_a_reserve(tmp_path: Path) -> None:
    _fill(tmp_path, "brute-force")
    _set(tmp_path, {"tidelog.compaction.strategy": "timestamp"})
    assert "as if the last record of each key were kept" in _show(tmp_path)[1]


def test_a_plan_rolls_no_segment(tmp_path: Path) -> None:
    code, told = _told(tmp_path, "--roll")
    assert code == ExitCode.USAGE
    assert "--roll" in told


def test_the_plan_has_other_partitions_beside_one_with_a_tier(tmp_path: Path) -> None:
    path, store = tmp_path / "data", tmp_path / "store"
    store.mkdir()
    _fill(path, "brute-force")
    with tidelog.open(str(path), writable=True) as log:
        config = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "2000",
            "remote.storage.enable": "true",
            "tidelog.tier.url": store.as_uri(),
            "local.retention.ms": "1",
        }
        log.create_topic("a", config=config)
        for _ in range(60):
            log.append("a", [tidelog.NewRecord(key=b"k", value=b"v" * 100)])
    err, out = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    assert run(["tier", "a", "--data", str(path)], surroundings) == ExitCode.OK, err.getvalue()
    code, told = _told(path, "-o", "json")
    assert code == ExitCode.ERROR
    assert "a-0: segments in a tier have no plan" in told
    assert "t-0: due" in told


@pytest.mark.parametrize("scheduler", ["brute-force", "generational"])
def test_a_plan_names_append_times_that_stop_a_compaction(tmp_path: Path, scheduler: str) -> None:
    _fill(tmp_path, scheduler)
    path = sorted((tmp_path / "t-0").glob("*.appendtime"))[1]
    path.unlink()
    rows, notes = _show(tmp_path)
    (line,) = [each for each in notes.splitlines() if "appendtime" in each]
    assert line.startswith(f"note: t-0 would not be compacted: {path}: 0 rows, but it had ")
    assert "--accept-lost-times" in line
    refused = [str(row["blocked_by"]) for row in rows if row["blocked_by"] is not None]
    assert [row["base_offset"] for row in rows if row["blocked_by"]] == [int(path.stem)]
    (refusal,) = refused
    assert refusal.removesuffix("`") in line
    (topic,), _ = _show(tmp_path, "--show", "topics")
    assert topic["blocked_by"] == refusal


def test_a_plan_does_not_name_append_times_of_segments_that_stay(tmp_path: Path) -> None:
    config = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2000",
        "tidelog.compaction.scheduler": "generational",
        "tidelog.compaction.space.factor": "1.5",
    }
    with tidelog.open(str(tmp_path), writable=True) as log:
        log.create_topic("t", config=config)
        for key in [*range(40), *(40 + number % 5 for number in range(60))]:
            log.append("t", [tidelog.NewRecord(key=b"%d" % key, value=b"v" * 100)])
    first, *_, last = sorted((tmp_path / "t-0").glob("*.appendtime"))[:-1]
    first.unlink()
    rows, notes = _show(tmp_path)
    assert [rows[at]["decision"] for at in (0, -1)] == ["keep", "clean"]
    assert "appendtime" not in notes
    last.unlink()
    assert f"note: t-0 would not be compacted: {last}: " in _show(tmp_path)[1]


def test_describe_names_append_times_that_stop_a_compaction(tmp_path: Path) -> None:
    _fill(tmp_path, "brute-force")
    path = sorted((tmp_path / "t-0").glob("*.appendtime"))[1]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for kind in ("table", "json", "csv"):
        raw, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
        assert (
            run(["describe", "t", "--data", str(tmp_path), "-o", kind], surroundings) == ExitCode.OK
        )
        assert f"note: {path}: row " in err.getvalue()
        assert "a move to a tier refuse the segment" in err.getvalue()
        if kind == "json":
            (partition,) = json.loads(raw.getvalue())["partition_facts"]
            (damage,) = partition["append_time_damage"]
            assert damage.startswith(f"{path}: row ")


def test_describe_reports_append_times_whose_read_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(tmp_path, "brute-force")

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tidelog.storage.segment.lost_times.read_optional", fail)
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    assert run(["describe", "t", "--data", str(tmp_path)], surroundings) == ExitCode.OK
    path = min((tmp_path / "t-0").glob("*.appendtime"))
    assert f"note: {path}: read failed: Input/output error" in err.getvalue()
