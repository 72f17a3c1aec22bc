"""Errors for invalid streams and for a Python that lacks packages; the Python that workers run."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.worlds.needs import need

import tidelog
from tidelog.errors import InvalidRequest
from tidelog.spark.options import read_source_options
from tidelog.spark.source import TidelogReader, TidelogSource

VALUE = StructType([StructField("value", BinaryType())])


def test_an_invalid_stream_fails_at_the_first_call_of_its_reader() -> None:
    """Spark would turn an error in creating the reader into an UnboundLocalError."""
    given = {"path": "/data", "subscribe": "t", "endingOffsets": "latest"}
    reader = TidelogSource(given).streamReader(VALUE)
    for ask in (reader.initialOffset, reader.getDefaultReadLimit):
        with pytest.raises(InvalidRequest, match="endingOffsets"):
            ask()
    reader.stop()


def test_an_empty_partition_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tidelog.open(str(tmp_path), writable=True) as directory:
        directory.create_topic("t", partitions=2)
        directory.append("t", [tidelog.NewRecord(value=b"v")], partition=0)
    options = read_source_options({"path": str(tmp_path), "subscribe": "t"})
    with caplog.at_level(logging.INFO):
        assert len(TidelogReader(options, ("value",)).partitions()) == 1
    told = [(one.levelname, one.getMessage().split(":")[0]) for one in caplog.records]
    assert ("INFO", "t-1") in told
    assert not [level for level, _ in told if level == "WARNING"]


@pytest.mark.parametrize("is_activated", [True, False])
def test_workers_run_this_python_if_the_environment_is_not_activated(
    is_activated: bool,
) -> None:
    """Without PYSPARK_PYTHON, workers would run the python3 in PATH, which has no tidelog."""
    need(sys.prefix != sys.base_prefix, "a virtual environment")
    own, others = f"{sys.prefix}/bin", "/usr/bin:/bin"
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")}
    env["PATH"] = f"{own}:{others}" if is_activated else others
    code = "import os, tidelog; print(os.environ.get('PYSPARK_PYTHON'))"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == ("None" if is_activated else sys.executable)


@pytest.mark.parametrize("is_conda", [True, False])
def test_workers_run_the_python_of_a_conda_environment(tmp_path: Path, is_conda: bool) -> None:
    """In conda, sys.prefix equals sys.base_prefix; a folder conda-meta marks an environment."""
    if is_conda:
        (tmp_path / "conda-meta").mkdir()
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")}
    env["PATH"] = "/usr/bin:/bin"
    code = (
        f"import os, sys; sys.prefix = sys.base_prefix = {str(tmp_path)!r}; import tidelog;"
        " print(os.environ.get('PYSPARK_PYTHON'))"
    )
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == (sys.executable if is_conda else "None")


def test_a_python_without_a_package_is_named_by_the_source_that_spark_finds(tmp_path: Path) -> None:
    """The Python that Spark runs finds tidelog by PYTHONPATH, but not tidelog's dependencies."""
    (tmp_path / "fastcrc.py").write_text("raise ModuleNotFoundError('no', name='fastcrc')")
    code = (
        "import sys\nfrom pyspark_tidelog import DefaultSource\n"
        "try: DefaultSource(options={}).schema()\n"
        "except Exception as error: print(type(error).__name__, error, error.__cause__)"
    )
    paths = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.startswith(f"MissingDependency the worker's Python, {sys.executable} on ")
    assert "lacks fastcrc: set spark.pyspark.python (or PYSPARK_PYTHON)" in told.stdout
