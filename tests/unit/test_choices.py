"""One function reads all choices of the public interface, as texts and as enum members."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
from tests.worlds.command_line import NOW, Cli

import tidelog
from tidelog import scan, spark
from tidelog.arguments import CHOICES, READERS, choice, choices_of, word_of
from tidelog.errors import InvalidChoice, InvalidRequest
from tidelog.jobs.audit.options import Kind
from tidelog.record.builder import build_batch
from tidelog.types import ClockName, Codec, IsolationLevel, NewRecord

# Names of parameters that accept a choice, whatever their annotation is.
NAMES = {*CHOICES, "order", "mode", "settings"}
# Parameters with one of these names that accept no choice: the clock of an Env, and a broker's
# settings.
OTHERS = {("Env", "clock"), ("ManualClock", "clock"), ("tidelog", "settings")}
MODULES = (tidelog, scan, spark)
# Calls that need no test of choices: `ManualClock` and `NewRecord.of_log` always get valid values,
# and `tidelog.open` passes its arguments to `Directory.open`.
OWN_WORDS = ("ManualClock.", "NewRecord.of_log", "tidelog.open")


def public_calls() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public functions, and the public methods of public classes."""
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if not inspect.isclass(found):
                if callable(found):
                    yield f"{module.__name__}.{name}", found
                continue
            if issubclass(found, Enum | BaseException):
                continue
            for method, call in inspect.getmembers(found, inspect.isroutine):
                if not method.startswith("_"):
                    yield f"{name}.{method}", call


def takes_a_choice(owner: str, parameter: inspect.Parameter) -> bool:
    if (owner.rpartition(".")[0], parameter.name) in OTHERS:
        return False
    annotation = parameter.annotation
    is_enum = inspect.isclass(annotation) and issubclass(annotation, Enum)
    names_one = re.search(r"ClockName|IsolationLevel|Codec\b|TimeMode|Mode\b", str(annotation))
    has_member = isinstance(parameter.default, Enum)
    return is_enum or bool(names_one) or has_member or parameter.name in NAMES


def choices() -> list[tuple[str, Callable[..., object], str]]:
    found: list[tuple[str, Callable[..., object], str]] = []
    for owner, call in public_calls():
        try:
            parameters = inspect.signature(call).parameters
        except (TypeError, ValueError):
            continue
        found.extend(
            (owner, call, parameter.name)
            for parameter in parameters.values()
            if takes_a_choice(owner, parameter)
        )
    return found


ALL = choices()


def test_the_walk_finds_the_choices() -> None:
    found = {(owner, name) for owner, _, name in ALL}
    expected = {
        ("Directory.scan", "isolation"),
        ("Directory.append", "codec"),
        ("RemoteDirectory.send", "codec"),
        ("AsyncRemoteDirectory.read", "clock"),
        ("tidelog.table", "inexact"),
        ("tidelog.scan.plan", "times"),
        ("tidelog.spark.audit", "isolation"),
        ("tidelog.spark.bootstrap", "order"),
        ("tidelog.spark.mirror", "partitions"),
        ("tidelog.spark.reindex", "mode"),
        ("tidelog.spark.replay", "clock"),
    }
    assert expected <= found


@pytest.mark.parametrize(("owner", "call", "name"), ALL, ids=[f"{o}:{n}" for o, _, n in ALL])
@pytest.mark.parametrize(
    "given", ["nonsense", 77, True, object()], ids=["text", "number", "bool", "object"]
)
def test_each_call_refuses_unknown_choices_first(
    owner: str, call: Callable[..., object], name: str, given: object
) -> None:
    kinds = getattr(call, "choices", {})
    assert name in kinds, f"{owner} doesn't read {name} as a choice"
    with pytest.raises(InvalidChoice, match=f"^{name} is .*; give one of ") as refused:
        call(**{name: given})
    assert all(word_of(member) in str(refused.value) for member in kinds[name])


# For each annotation, a value of a wrong type, which parameters with this annotation refuse.
WRONG: Mapping[object, object] = {str: 5, int: "five", float: "five", bool: "yes"}


def plain_parameters() -> Iterator[tuple[str, Callable[..., object], str, object]]:
    """Yield the parameters of public calls that accept a text, a number or a flag.

    Yields the call's owner, the call, the parameter's name, and a value that the call refuses.
    """
    for owner, call in public_calls():
        try:
            parameters = inspect.signature(call).parameters
        except (TypeError, ValueError):
            continue
        for parameter in parameters.values():
            kind = parameter.annotation
            is_union = get_origin(kind) in (Union, UnionType)
            kinds = {*(get_args(kind) if is_union else (kind,))} - {type(None)}
            is_special = parameter.name in READERS or takes_a_choice(owner, parameter)
            if len(kinds) == 1 and kinds <= WRONG.keys() and not is_special:
                yield owner, call, parameter.name, WRONG[kinds.pop()]


PLAIN = [one for one in plain_parameters() if not one[0].startswith(OWN_WORDS)]


@pytest.mark.parametrize(
    ("owner", "call", "name", "given"), PLAIN, ids=[f"{o}:{n}" for o, _, n, _ in PLAIN]
)
def test_each_plain_argument_of_another_type_is_named(
    owner: str, call: Callable[..., object], name: str, given: object
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name} "):
        call(**{name: given})


NUMBERS = [one for one in PLAIN if one[3] == "five"]


@pytest.mark.parametrize(
    ("owner", "call", "name"),
    [one[:3] for one in NUMBERS],
    ids=[f"{o}:{n}" for o, _, n, _ in NUMBERS],
)
@pytest.mark.parametrize("given", [2**70, -(2**63) - 1, 2**2_000])
def test_each_number_over_64_bits_is_named(
    owner: str, call: Callable[..., object], name: str, given: int
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name} is .*; give a whole number of at most 64"):
        call(**{name: given})


@pytest.mark.parametrize("kind", [ClockName, IsolationLevel, Codec, Kind])
def test_a_choice_is_a_member_or_its_text_in_any_case(kind: type[Enum]) -> None:
    for member in kind:
        for given in (member, word_of(member), word_of(member).upper()):
            assert choice(kind, given, "x") is member
    assert isinstance(InvalidChoice("x"), InvalidRequest)


def test_a_number_of_the_protocol_is_accepted_for_its_choice() -> None:
    assert choice(IsolationLevel, 1, "isolation") is IsolationLevel.READ_COMMITTED
    with pytest.raises(InvalidChoice):
        choice(ClockName, 1, "clock")


def test_a_set_of_choices_may_be_one_or_many() -> None:
    one, other = list(Kind)[:2]
    assert choices_of(Kind, str(one), "ignore") == {one}
    assert choices_of(Kind, [one, str(other)], "ignore") == {one, other}
    with pytest.raises(InvalidChoice, match="ignore is 'x'"):
        choices_of(Kind, ["x"], "ignore")


@pytest.mark.parametrize("isolation", ["read_committed", IsolationLevel.READ_COMMITTED])
def test_isolation_as_text_hides_an_open_transaction(tmp_path: Path, isolation: object) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights")
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as log:
        batch = build_batch(
            [NewRecord(value=b"open", timestamp=NOW)],
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.log("flights", 0).append_batches(batch)
        assert log.scan("flights").to_table().num_rows == 1
        assert log.scan("flights", isolation=isolation).to_table().num_rows == 0  # type: ignore[arg-type] # or text
        assert list(log.records("flights", isolation=isolation)) == []  # type: ignore[arg-type] # or text
        assert log.count("flights", isolation=isolation) == 0  # type: ignore[arg-type] # or text
        assert log.read("flights", isolation=isolation).read_all().num_rows == 0  # type: ignore[arg-type] # or text


def test_a_codec_may_be_given_as_text(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights")
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as log:
        log.append("flights", [NewRecord(value=b"x" * 1_000)], codec="zstd")
    path = next(cli.data.glob("flights-0/*.log"))
    (batch,) = cli.ok("dump", str(path), "-o", "json").objects
    assert batch["codec"] == "zstd"


def test_a_type_checker_accepts_a_choice_as_member_and_as_text(tmp_path: Path) -> None:
    """The calls below need no `type: ignore`, although strict mypy checks this file."""
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights")
    records = [NewRecord(value=b"x" * 1_000)]
    with tidelog.open(cli.data, writable=True, env=cli.env) as log:
        log.append("flights", records, codec="zstd")
        log.append("flights", records, codec=Codec.ZSTD)
        names = log.log_dir.partitions("flights")
        ends = log.end_offsets(names, isolation="read_committed")
        assert ends == log.end_offsets(names, isolation=IsolationLevel.READ_COMMITTED)
        counts = (
            log.count("flights", clock="append", isolation="read_committed"),
            log.count("flights", clock=ClockName.APPEND),
            log.scan("flights", clock="append", isolation="read_committed").to_table().num_rows,
            scan.count(log.path, "flights", isolation="read_committed", env=cli.env).records,
        )
        assert counts == (2, 2, 2, 2)
        assert scan.plan(log.log_dir, "flights", clock="append", times="exact").splits
