"""Tests of the corpus's own code, which stores, compares and accepts entries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.corpus import still
from tests.corpus.__main__ import main
from tests.corpus.book import PLAIN_MAX_BYTES, Entry, pages, read_part, unique, write_part
from tests.corpus.differences import DIFF_LINES_MAX, DIFFS_MAX, differences, report
from tests.corpus.masks import HOME_MASK, masked
from tests.corpus.stage import ROOT

TEXTS = ["", "one", "a\n", "=== heading\n\\=== x\n\\", "\n\nthree \n", "Zürich"]


@pytest.mark.parametrize("packed", [False, True])
def test_written_parts_are_read_back(tmp_path: Path, *, packed: bool) -> None:
    entries = [Entry(f"part/page-{n % 2}/x/{n}", text) for n, text in enumerate(TEXTS)]
    if packed:
        line = "line of a large text\n"
        entries.append(Entry("part/page-0/large", line * (PLAIN_MAX_BYTES // len(line) + 1)))
    write_part("part", entries, tmp_path)
    suffix = ".txt.xz" if packed else ".txt"
    assert [path.name for path in pages("part", tmp_path)] == [f"page-{n}{suffix}" for n in (0, 1)]
    assert read_part("part", tmp_path) == unique(entries)
    write_part("part", entries[:1], tmp_path)
    assert read_part("part", tmp_path) == unique(entries[:1])


@pytest.mark.parametrize(
    "name", ["part", "part/page", "Part/page/x", "part/page/a b", "part/a.b/c"]
)
def test_names_of_entries_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match="no name of an entry"):
        Entry(name, "")


@pytest.mark.parametrize("text", ["\x1b[1m", "a\rb", "a\tb", "\x00"])
def test_texts_are_printable(text: str) -> None:
    with pytest.raises(ValueError, match="line 2 is not printable"):
        Entry("part/page/x", f"fine\n{text}")


def test_two_entries_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="two entries"):
        unique([Entry("part/page/x", "1"), Entry("part/page/x", "1")])


def test_new_missing_and_other_entries_are_differences() -> None:
    def book(**texts: str) -> dict[str, Entry]:
        return unique(Entry(f"part/page/{name}", text) for name, text in texts.items())

    found = differences(
        book(a="same", b="1\n2\n3", c="gone"), book(a="same", b="1\n2x\n3", d="now")
    )
    assert [(one.name[-1], one.kind) for one in found] == [
        ("b", "differs"),
        ("c", "missing"),
        ("d", "new"),
    ]
    assert found[0].lines() == [
        "part/page/b: differs",
        *(
            "    --- kept",
            "    +++ now",
            "    @@ -1,3 +1,3 @@",
            "     1",
            "    -2",
            "    +2x",
            "     3",
        ),
    ]
    assert found[1].lines()[-1] == "    -gone"


def test_long_reports_are_cut_unless_all_is_requested() -> None:
    long = {f"part/page/{n}": Entry(f"part/page/{n}", "x\n" * 100) for n in range(DIFFS_MAX + 5)}
    found = differences(long, {})
    lines = list(report(found))
    assert lines[DIFF_LINES_MAX + 1].endswith("./run corpus replay part/page/0")
    assert "and 5 more:" in lines
    assert len(list(report(found, whole=True))) > len(found) * 100


def test_masks_keep_the_length() -> None:
    home = Path("/tmp/corpus-ab_cd12x")
    assert masked(f"in {home}/logs", home) == f"in {HOME_MASK}/logs"
    assert len(str(home)) == len(HOME_MASK)


@pytest.mark.parametrize("arguments", [["replay", "nope"], ["record", "nope/page/x"]])
def test_unknown_parts_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    assert "no part nope" in capsys.readouterr().err


def test_the_world_stands_still() -> None:
    script = (
        "from tests.corpus import still; still.hold(); import os, time, uuid, random, secrets\n"
        "def look(library=lambda: None):\n"
        "    still.draw_for('x')\n"
        "    library()\n"
        "    one = random.SystemRandom()\n"
        "    draws = one.randbytes(4), one.getrandbits(128), one.random()\n"
        "    return time.time_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME), draws\n"
        "assert look() == look()\n"
        "for library in (uuid.uuid4, lambda: secrets.randbits(128), lambda: os.urandom(16)):\n"
        "    assert look(library) == look()\n"
        "still.advance(1500)\n"
        "assert still.now_ms() == still.START_MS + 1500 == time.time_ns() // 1_000_000\n"
        "print(look())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(outputs) == 1
    assert still.START_MS % 86_400_000 == 12 * 3_600_000
