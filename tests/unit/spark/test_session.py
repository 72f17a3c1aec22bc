"""Settings of sessions, and whether an error of Spark contains an error of tidelog."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tidelog.spark.session import (
    PUSHDOWN,
    SessionOptions,
    our_words,
    settings,
    setup,
    stderr_to,
    use_this_python,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACE = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "worker.py", line 1, in main
pyarrow.lib.ArrowInvalid: something else

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "sink.py", line 9, in write
tidelog.errors.MessageTooLarge: a batch of 9 bytes, max.message.bytes is 5
 SQLSTATE: 38000
"""


def given(tmp_path: Path, **options: object) -> dict[str, str]:
    made = SessionOptions(**options)  # type: ignore[arg-type] # options by name
    return settings(made, tmp_path, tmp_path / "log4j2.properties")


def test_settings_of_a_local_session(tmp_path: Path) -> None:
    found = given(tmp_path)
    assert found[PUSHDOWN] == "true"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:/")


def test_with_another_master_no_addresses_are_set(tmp_path: Path) -> None:
    found = given(tmp_path, master="spark://master:7077", conf={PUSHDOWN: "false"})
    assert not found.keys() & {"spark.driver.host", "spark.local.dir"}
    assert found[PUSHDOWN] == "false"


@pytest.mark.parametrize("chosen", [None, "/opt/python"])
def test_workers_run_this_python_unless_another_was_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, chosen or "")
        if chosen is None:
            monkeypatch.delenv(name)
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == (chosen or sys.executable)
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == (chosen or sys.executable)


def test_messages_are_appended_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spark.log"
    path.write_bytes(b"earlier\n")
    for text in (b"one\n", b"two\n"):
        with stderr_to(path):
            os.write(2, text)
    assert path.read_bytes() == b"earlier\none\ntwo\n"


def test_setup_prepares_the_workers_and_the_pushdown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    conf: dict[str, str] = {}
    java = SimpleNamespace(first=lambda: {"version": "17.0.9"})
    session = cast(
        "SparkSession",
        SimpleNamespace(
            version="4.3.0",
            sql=lambda _: java,
            conf=SimpleNamespace(set=conf.__setitem__),
        ),
    )
    assert setup(session, checks_workers=False) is session
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert conf == {PUSHDOWN: "true"}


def test_a_connect_server_has_its_own_driver(tmp_path: Path) -> None:
    options = SessionOptions(master="sc://server:15002")
    assert options.is_connect
    assert not options.is_local
    assert all(name.startswith("spark.sql.") for name in given(tmp_path, master=options.master))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRACE, ("MessageTooLarge", "a batch of 9 bytes, max.message.bytes is 5")),
        (
            "x\ntidelog.jobs.target_check.TargetLoses: t at d: all\n",
            ("TargetLoses", "t at d: all"),
        ),
        ("[A] Failed: tidelog.errors.InvalidRequest: no b\n SQLSTATE", ("InvalidRequest", "no b")),
        ("java.lang.OutOfMemoryError: heap", None),
        ("see tidelog.errors for more", None),
    ],
)
def test_the_error_of_tidelog_within_an_error_of_spark(
    text: str, words: tuple[str, str] | None
) -> None:
    assert our_words(text) == words
