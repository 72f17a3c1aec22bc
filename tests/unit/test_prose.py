"""The prose check: its patterns, the reported positions, and the text that it ignores."""

import json

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


@pytest.mark.parametrize("folder", ["src", "examples", "bench"])
def test_messages_count_in_programs_for_users(folder: str) -> None:
    lines = [line for line in problems(f"{folder}/a.py", PYTHON) if "nobody" in line]
    assert [line.split(": ")[0] for line in lines] == [f"{folder}/a.py:11", f"{folder}/a.py:12"]


def test_texts_and_code_of_notebooks_but_not_outputs() -> None:
    output = {"output_type": "stream", "text": ['   "source": [', "# nobody"]}
    cells = [
        {"cell_type": "markdown", "source": ["# A page\n", "It is made\n", "anew by `nobody`."]},
        {"cell_type": "code", "outputs": [output], "source": ["x = 1\n", "# somebody\n", "x"]},
        {"cell_type": "code", "outputs": [], "source": []},
        {"cell_type": "markdown", "source": ['"Whoever" reads it']},
    ]
    text = json.dumps({"cells": cells}, indent=1)
    found = list(problems("examples/a.ipynb", text))
    lines = text.split("\n")
    shown = [lines[int(line.split(":")[1]) - 1].strip() for line in found]
    assert sorted(shown) == [
        '"# somebody\\n",',
        '"\\"Whoever\\" reads it"',
        '"anew by `nobody`."',
    ]


def test_messages_and_here_documents_of_scripts() -> None:
    script = """say "a message that nobody reads"
run 'one nobody' <<'EOF'
  test    all that somebody named
EOF
nobody and somebody
"""
    found = [line.split(": ")[:2] for line in problems("run", script)]
    assert found == [["run:1", "'nobody'"], ["run:3", "'somebody'"]]


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
