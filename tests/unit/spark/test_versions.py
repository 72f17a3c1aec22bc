"""Refused versions of Spark and Java, and how a process finds the Java that started it."""

from pathlib import Path

import pytest

from tidelog.errors import UnsupportedVersion
from tidelog.spark.session import check_versions, driver_java, refusing_source


@pytest.mark.parametrize("spark", ["4.2.0", "4.3.0", "4.3.1", "4.3.0.dev1", "4.2.0-vendor-7"])
@pytest.mark.parametrize("java", ["17", "17.0.15", "21", "21.0.8", None])
def test_supported_versions_are_accepted(spark: str, java: str | None) -> None:
    check_versions(spark, java)


@pytest.mark.parametrize("spark", ["3.5.6", "4.0.0", "4.1.1", "4.4.0", "5.0.0", "42.0"])
def test_other_sparks_are_refused(spark: str) -> None:
    with pytest.raises(
        UnsupportedVersion, match=rf"Spark 4\.2 and 4\.3, this is {spark}: run .pip"
    ):
        check_versions(spark, "17")


@pytest.mark.parametrize("java", ["1.8", "11.0.2", "24", "25"])
def test_other_javas_are_refused(java: str) -> None:
    with pytest.raises(UnsupportedVersion, match=rf"Java 17 and 21, this is Java {java}: set JAVA"):
        check_versions("4.3.0", java)


@pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning")
def test_the_error_of_a_spark_without_our_base_classes_names_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    source = refusing_source()({})
    assert source.name() == "tidelog"
    with pytest.raises(UnsupportedVersion, match=r"this is 4\.0\.1"):
        source.schema()
    with pytest.raises(UnsupportedVersion, match=r"this is 4\.0\.1"):
        source.writer(schema=None, overwrite=False)  # type: ignore[arg-type] # it is not read


class TestDriverJava:
    """Processes as Linux shows them in /proc."""

    @pytest.fixture
    def proc(self, tmp_path: Path) -> Path:
        return tmp_path / "proc"

    def process(self, proc: Path, pid: int, parent: int, program: Path) -> None:
        folder = proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0")
        (folder / "exe").symlink_to(program)

    def java(self, home: Path, release: str | None) -> Path:
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.touch()
        if release is not None:
            (home / "release").write_text(release)
        return program

    def test_the_drivers_java_is_found_through_the_daemon(self, proc: Path, tmp_path: Path) -> None:
        java = self.java(tmp_path / "jdk", 'IMPLEMENTOR="x"\nJAVA_VERSION="21.0.8"\n')
        self.process(proc, 30, 20, tmp_path / "python3")
        self.process(proc, 20, 10, tmp_path / "python3")
        self.process(proc, 10, 1, java)
        assert driver_java(proc, 30) == "21.0.8"

    def test_a_java_that_does_not_say(self, proc: Path, tmp_path: Path) -> None:
        self.process(proc, 20, 10, tmp_path / "python3")
        self.process(proc, 10, 1, self.java(tmp_path / "jdk", None))
        assert driver_java(proc, 20) is None

    def test_without_a_java_process_no_version_is_found(self, proc: Path, tmp_path: Path) -> None:
        self.process(proc, 20, 1, tmp_path / "python3")
        self.process(proc, 1, 0, tmp_path / "init")
        assert driver_java(proc, 20) is None
        assert driver_java(tmp_path / "no-proc", 20) is None
