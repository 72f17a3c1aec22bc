"""Tests of the list of messages for users."""

from pathlib import Path

import pytest
from tests.corpus.__main__ import main
from tests.corpus.book import Entry
from tests.corpus.messages import Message, list_messages, missing_texts

TRANSCRIPT = """\
$ tidelog read flight -d logs
| {"severity": "error", "damage": "not UTF-8", "remedy": "restore it"}
! error: no topic 'flight'
! hint: did you mean flights?
! hint: `tidelog topics` lists them
! 3 records
= 3
@serve -d logs
  ! 2024-05-15T12:00:00.000+00:00 info stopped
  ! {"time": "2024-05-15T12:00:00Z", "level": "warning", "message": "slow"}
  ConfigError: retention.ms=x: must be a number
  Elsewhere: no error
<   topics[0].error_message: "Topic \\"a\\" exists."
< '{"version":1,"error":{"type":"UnknownTopic","text":"no topic \\'a\\'","fields":{}}}'"""

MESSAGES = [
    Message("ConfigError", "retention.ms=x: must be a number"),
    Message("UnknownTopic", "no topic 'a'"),
    Message("error", "no topic 'flight'", ("did you mean flights?", "`tidelog topics` lists them")),
    Message("finding error", "not UTF-8", ("restore it",)),
    Message("log info", "stopped"),
    Message("log warning", "slow"),
    Message("response", 'Topic "a" exists.'),
    Message("stderr", "3 records"),
]


def test_each_kind_of_message_is_found_once() -> None:
    entries = [Entry(f"commands/page/{name}", TRANSCRIPT) for name in "ab"]
    found = list_messages(entries, frozenset({"ConfigError"}))
    assert list(found) == MESSAGES
    assert set(map(frozenset, found.values())) == {frozenset(one.name for one in entries)}


def test_a_message_is_printed_with_its_hints_and_its_first_entries() -> None:
    message = Message("error", "no topic 'a'", ("did you mean b?",))
    assert list(message.lines(["x/y/4", "x/y/2", "x/y/3", "x/y/1"])) == [
        "error: no topic 'a'",
        "  hint: did you mean b?",
        "    x/y/1, x/y/2, x/y/3 and 1 more",
    ]


def test_the_command_lists_the_messages_of_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "commands/describe"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    at = lines.index("error: no topic 'fligths'; did you mean flights?")
    assert lines[at + 1].startswith("  hint: ")
    assert lines[at + 2] == "    commands/describe/refused"
    assert last.startswith("corpus: ")
    # A message, a hint, or names of entries.
    assert all(line.partition(": ")[2] or line.startswith("    commands/") for line in lines)


def test_texts_that_no_test_has_are_missing(tmp_path: Path) -> None:
    source, tests = tmp_path / "src", tmp_path / "tests"
    source.mkdir()
    tests.mkdir()
    (source / "a.py").write_text(
        "def check(value, log):\n"
        "    if value < 0:\n"
        "        raise ValueError(f'{value}: the value must not be negative')\n"
        "    log.warning('the value %s is unusually large', value)\n"
        "    log.note('the value is known to a test')\n"
        "    log.note('the value is in the corpus')\n"
        "    raise AssertionError('the value can never be this')\n"
    )
    (tests / "test_a.py").write_text("TEXT = 'the value is ' 'known to a test'")
    entry = Entry("commands/page/name", "! note: the value is in the corpus")
    found = missing_texts([entry], source, tests)
    assert [(f"{one.path}", one.line, one.text) for one in found] == [
        ("src/a.py", 3, ": the value must not be negative"),
        ("src/a.py", 4, "the value %s is unusually large"),
    ]
