"""Checks all files of the project: lengths of functions, banned words, links, and so on."""

from pathlib import Path

import pytest
from tests.tidy import checks

PYTHON = checks.project_files(".py")
TEXT = checks.project_files(".py", ".md", ".toml", ".txt", ".sh", ".java", ".xml", ".yml", "run")
MARKDOWN = checks.project_files(".md")


def gather(findings: dict[Path, list[str]]) -> list[str]:
    return [f"{checks.name_of(path)}:{line}" for path, lines in findings.items() for line in lines]


def test_functions_have_at_most_70_lines() -> None:
    assert gather({path: checks.long_functions(path.read_text()) for path in PYTHON}) == []


def test_error_codes_of_kafka_stand_in_one_list() -> None:
    from kio.schema.errors import ErrorCode

    names = {code.name.upper() for code in ErrorCode} - {"NONE"}
    source = [path for path in PYTHON if "src" in path.relative_to(checks.ROOT).parts]
    restated = {path: checks.numbers_named(path.read_text(), names) for path in source}
    assert gather({p: found for p, found in restated.items() if p.name != "error_codes.py"}) == []
    assert any(restated.values()), "codes are looked for where there are none"


def test_no_banned_words() -> None:
    assert gather({path: checks.banned_words(path.read_text()) for path in TEXT}) == []


def test_tests_skip_only_what_ci_would_fail() -> None:
    """tests/measured.py may skip tests, because only `./run coverage` loads it, not CI."""
    exceptions = {"tests/worlds/needs.py", "tests/measured.py", "tests/tidy/checks.py"}
    others = [path for path in PYTHON if checks.name_of(path) not in exceptions]
    assert gather({path: checks.own_skips(path.read_text()) for path in others}) == []


def test_links_between_documents_resolve() -> None:
    assert gather({path: checks.broken_links(path, path.read_text()) for path in MARKDOWN}) == []


def test_every_page_of_the_book_is_linked_from_its_front() -> None:
    front = checks.ROOT / "docs" / "README.md"
    pages = [path for path in MARKDOWN if front.parent in path.parents]
    assert front in pages
    assert checks.unlinked_pages(front, front.read_text(), pages) == []


def test_every_page_of_the_book_begins_with_what_its_reader_can_do() -> None:
    front = checks.ROOT / "docs" / "README.md"
    pages = [path for path in MARKDOWN if path.parent == front.parent and path != front]
    pages.append(checks.ROOT / "SECURITY.md")
    leads = {checks.name_of(path): checks.first_paragraph(path.read_text()) for path in pages}
    assert [name for name, lead in leads.items() if "you can" not in lead] == []


@pytest.mark.parametrize(
    ("page", "lead"),
    [
        (
            "# Title\n\nAfter reading this page you\ncan do it.\n\nMore.\n",
            "After reading this page you can do it.",
        ),
        ("# Title\n\n## Part\n\nAfter this you can do it.\n", ""),
        ("# Title\n", ""),
    ],
)
def test_first_paragraph_is_directly_below_the_title(page: str, lead: str) -> None:
    assert checks.first_paragraph(page) == lead


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [path.name[:4] for path in MARKDOWN if path.parent.name == "decisions"]
    assert len(set(numbers)) == len(numbers) > 0


def test_documents_that_code_names_exist() -> None:
    code = [path for path in PYTHON if path.parts[-2:] != ("tidy", "test_files.py")]
    assert gather({path: checks.missing_documents(path.read_text()) for path in code}) == []


def test_each_difference_from_kafka_names_a_test_that_exists() -> None:
    text = Path(checks.ROOT, "docs", "differences.md").read_text()
    assert len(list(checks.table_rows(text))) > 0
    assert checks.missing_tests(text) == []


def test_tables_of_differences_are_complete_and_without_repetitions() -> None:
    lines = Path(checks.ROOT, "docs", "differences.md").read_text().splitlines()
    tested = [line.split("|")[-2] + line.split("|")[1][:40] for line in lines if line[:1] == "|"]
    rows = [row for row in tested if ".py " in row]
    assert rows
    assert sorted(row for row in set(rows) if rows.count(row) > 1) == []
    around = zip(lines, lines[1:], lines[2:], strict=False)
    assert [
        above for above, gap, below in around if not gap and above[:1] == below[:1] == "|"
    ] == []


def test_directories_of_tests_are_no_packages() -> None:
    """With import mode importlib, two files of one name in two directories don't clash."""
    homes = {path.parent for path in PYTHON if path.name.startswith("test_")}
    assert [checks.name_of(home) for home in homes if (home / "__init__.py").exists()] == []


# ---------------------------------------------------------- the checks find planted problems


@pytest.mark.parametrize(("body_lines", "found"), [(69, 0), (70, 1)])
def test_long_function_is_found(body_lines: int, found: int) -> None:
    source = "def f():\n" + "    x = 1\n" * body_lines
    assert len(checks.long_functions(source)) == found


def test_long_method_is_found() -> None:
    source = "class C:\n    async def f(self):\n" + "        x = 1\n" * 70
    assert checks.long_functions(source) == ["2: f has 71 lines, at most 70"]


@pytest.mark.parametrize(
    "line",
    [
        "see /" + "work/notes",
        "/ro" + "ot/.cache/x",
        "'/ho" + "me/ann/x'",
        "https://pypi." + "org/simple",
        "# FIX" + "ME later",
        "# TO" + "DO: later",
        "from unittest." + "mock import patch",
        "BASE_OFFSET_OFF" + "SET = 0",
    ],
)
def test_banned_word_is_found(line: str) -> None:
    assert len(checks.banned_words(f"fine\n{line}\n")) == 1


@pytest.mark.parametrize(
    "line",
    ["a framework/x", "the root/leaf", "# TO" + "DO(#12): later", "https://kafka.apache.org"],
)
def test_fine_word_passes(line: str) -> None:
    assert checks.banned_words(line) == []


@pytest.mark.parametrize("line", ["@pytest.mark." + "skipif(1)", "pytest." + "skip('why')"])
def test_own_skip_is_found(line: str) -> None:
    assert checks.own_skips(f"need(found)\n{line}\n") == ["2: use tests.worlds.needs"]


def test_broken_link_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "a.md", tmp_path / "b.md"
    other.write_text("# One `thing`, two\n")
    text = (
        "# Here\n[1](b.md) [2](b.md#one-thing-two) [3](#here) [4](https://x.y)\n```\n[z](z)\n```\n"
    )
    assert checks.broken_links(page, text) == ["no such target: #here"], "a.md isn't there yet"
    page.write_text(text)
    assert checks.broken_links(page, text) == []
    assert checks.broken_links(page, "[5](c.md) [6](b.md#three)") == [
        "no such target: c.md",
        "no such target: b.md#three",
    ]


def test_unlinked_page_is_found(tmp_path: Path) -> None:
    front = tmp_path / "README.md"
    pages = [front, tmp_path / "a.md", tmp_path / "more" / "b.md", tmp_path / "more" / "c.md"]
    text = "[1](a.md#part) [2](more/b.md)\n```\n[3](more/c.md)\n```\n"
    assert checks.unlinked_pages(front, text, pages) == ["not linked: more/c.md"]


def test_missing_document_is_found() -> None:
    text = "Source: docs/testing.md, docs/not-there.md#anchor"
    assert checks.missing_documents(text) == ["no such document: docs/not-there.md"]


def test_difference_without_its_test_is_found() -> None:
    here = "tests/tidy/test_files.py"
    rows = [
        f'| good | [x](../{here} "test_no_banned_words") |',
        "| nameless | none |",
        f'| gone | [x](../{here} "test_that_is_not_there") |',
        '| lost | [x](../tests/nowhere.py "test_x") |',
    ]
    table = "\n".join(["| what | test |", "|---|---|", *rows])
    assert checks.missing_tests(table) == [
        "no test named: nameless",
        f"no such test: {here}::test_that_is_not_there",
        "no such test: tests/nowhere.py::test_x",
    ]
