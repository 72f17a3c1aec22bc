"""The prose check: its patterns, the reported positions, and the text that it ignores."""

import pytest
from tools.prose import markdown_prose, problems, python_prose, shell_prose

PYTHON = '''"""What it does."""

NAME = "what somebody says is no prose here"


def run() -> None:
    """Return `somebody`.

    Whoever calls it waits for ever.
    """
    # Likewise: nobody waits.
    print("a message that nobody reads")
'''


def test_a_problem_names_file_line_phrase_and_replacement() -> None:
    (line,) = problems("SECURITY.md", "# A\n\nIt is made\nanew.\n")
    assert line == "SECURITY.md:4: 'anew': write 'again', or a verb: recreate, rebuild, replan"


def test_docstrings_and_comments_of_python() -> None:
    found = [line.split(": ")[:2] for line in problems("tools/a.py", PYTHON)]
    assert sorted(found) == [
        ["tools/a.py:1", '\'"""What\''],
        ["tools/a.py:11", "'# Likewise'"],
        ["tools/a.py:11", "'Likewise'"],
        ["tools/a.py:11", "'nobody'"],
        ["tools/a.py:9", "'Whoever'"],
        ["tools/a.py:9", "'for ever'"],
    ]


def test_messages_count_in_src() -> None:
    lines = [line for line in problems("src/a.py", PYTHON) if "nobody" in line]
    assert [line.split(": ")[0] for line in lines] == ["src/a.py:11", "src/a.py:12"]


def test_a_phrase_across_lines_and_a_word_in_another_word() -> None:
    assert len(list(problems("SECURITY.md", "it waits for\never"))) == 1
    assert list(problems("SECURITY.md", "Mendel's canewood")) == []


@pytest.mark.parametrize(
    "text",
    [
        "```\nnobody\n```\n",
        "    nobody\n",
        "say `nobody` or ``nobody``\n",
        "[a page](nobody.md)\n",
        "<!-- nobody -->\n",
    ],
)
def test_code_of_markdown_is_no_prose(text: str) -> None:
    prose = markdown_prose(text)
    assert "nobody" not in prose
    assert len(prose) == len(text)


def test_places_stay() -> None:
    text = 'x = "ä"  # somebody\n'
    assert python_prose(text) == "         # somebody\n"
    assert shell_prose("echo nobody\n# somebody\n") == "           \n# somebody\n"
