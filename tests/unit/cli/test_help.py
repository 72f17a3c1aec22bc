"""Help texts: sections, whole summaries, and lines that fit 80 columns."""

import re
from collections.abc import Iterator

import click
import pytest
from tests.examples import blocks
from tests.worlds.command_words import parse

from tidelog.cli.app import app
from tidelog.cli.command_groups import summary_of
from tidelog.errors import InvalidTime


def commands(
    command: click.Command = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.resolve_command(context, [name])[1]
            assert found is not None
            yield from commands(found, (*path, name))


ALL = dict(commands())


@pytest.mark.parametrize("name", ALL)
def test_help_fits_80_columns(name: str) -> None:
    command = ALL[name]
    context = command.context_class(command, info_name=f"tidelog {name}", terminal_width=80)
    text = command.get_help(context)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert [line for line in text.splitlines() if re.search(r"\w-$", line)] == []
    assert "..." not in summary_of(command)


@pytest.mark.parametrize("name", [one for one in ALL if ALL[one].epilog])
def test_the_examples_are_valid_and_their_times_have_zones(name: str) -> None:
    for words in blocks.commands(ALL[name].epilog or ""):
        parse(words)


def test_times_in_sentences_have_zones() -> None:
    ranges = [
        (name, text)
        for name, command in ALL.items()
        for text in re.findall(r"--during ([0-9]{4}[^ ,.;]*)", command.help or "")
    ]
    assert ranges
    for name, text in ranges:
        parse([*name.split(), "flights", "--during", text])


def test_a_time_without_a_zone_in_an_example_is_found() -> None:
    with pytest.raises(InvalidTime, match="the time zone is missing"):
        parse(["latency", "flights", "--during", "2013-12"])


@pytest.mark.parametrize("name", [one for one in ALL if isinstance(ALL[one], click.Group)])
def test_each_summary_is_whole_and_on_one_line(name: str) -> None:
    group = ALL[name]
    assert isinstance(group, click.Group)
    context = click.Context(group, info_name=f"tidelog {name}", terminal_width=80)
    lines = group.get_help(context).splitlines()
    for one, command in group.commands.items():
        if not command.hidden:
            summary = summary_of(ALL[f"{name} {one}".strip()])
            assert sum(line.split() == f"{one} {summary}".split() for line in lines) == 1, one


@pytest.mark.parametrize("name", ALL)
def test_each_option_with_a_value_states_the_behavior_without_it(name: str) -> None:
    for option in ALL[name].params:
        if isinstance(option, click.Option) and not option.is_flag and not option.required:
            is_shown = option.show_default and option.default is not None
            words = ("[default: ", "Default: ", "Required without ")
            assert is_shown or any(one in (option.help or "") for one in words), option.opts


@pytest.mark.parametrize("name", ALL)
def test_each_value_has_a_name_and_each_optional_argument_is_in_brackets(name: str) -> None:
    for param in ALL[name].params:
        if isinstance(param, click.Argument):
            assert param.metavar, param.name
            assert param.metavar.startswith("[") is not param.required, param.metavar
        elif isinstance(param, click.Option) and not param.is_flag:
            assert param.metavar or isinstance(param.type, click.Choice), param.opts


def test_both_ends_of_a_range_name_the_same_clock() -> None:
    texts = {
        name: {
            opt: one.help or ""
            for one in command.params
            if isinstance(one, click.Option)
            for opt in one.opts
        }
        for name, command in ALL.items()
    }
    ranges = {name: one for name, one in texts.items() if one.keys() >= {"--from", "--to"}}
    of_time = {name: one for name, one in ranges.items() if "(exclusive)" in one["--to"]}
    assert len(of_time) >= 5
    for name, one in of_time.items():
        for clock in ("append time", "record timestamp"):
            assert (clock in one["--from"]) == (clock in one["--to"]), name


def test_brokers_are_required_or_the_variables() -> None:
    context = click.Context(ALL["lag"], info_name="tidelog lag", terminal_width=80)
    text = " ".join(ALL["lag"].get_help(context).split())
    assert "Required without TIDELOG_BOOTSTRAP. --" in text


def test_the_settings_of_an_audit_name_its_sides() -> None:
    audit = ALL["audit"]
    texts = {one.opts[0]: one.help or "" for one in audit.params if isinstance(one, click.Option)}
    for name, side in {"--command-config": "A", "--to-command-config": "B"}.items():
        assert texts[name] == f"Client settings for {side}, if it is a cluster. Default: none."
    for name, side in {"--store-option": "A's", "--to-store-option": "B's"}.items():
        assert texts[name].startswith(f"A setting of {side} object store; repeatable.")


@pytest.mark.parametrize("name", ["read", "diff"])
def test_the_names_of_binary_columns_are_explained(name: str) -> None:
    (text,) = (
        one.help or ""
        for one in ALL[name].params
        if isinstance(one, click.Option) and "--format" in one.opts
    )
    assert "names of the Spark source (appendTimestamp)" in text


def test_help_of_produce_shows_how_headers_are_written() -> None:
    command = ALL["produce"]
    text = command.get_help(click.Context(command, info_name="tidelog produce", terminal_width=80))
    assert """--headers '{"by": "ten"}'""" in text


def test_help_of_diff_says_that_compaction_removes_the_past() -> None:
    text = " ".join((ALL["diff"].help or "").split())
    assert "past days of a compacted topic are normally no longer known" in text
    assert "--inexact mark" in text


def test_sections_list_each_command_once() -> None:
    text = app.get_help(click.Context(app, terminal_width=80))
    headings = re.findall(r"^([A-Z][a-z]+):$", text, re.MULTILINE)
    assert headings == ["Options", "Read", "Write", "Keep", "Operate", "Move", "Spark"]
