"""Packages that load their names at first use: errors for missing extras, listed names."""

import sys

import pytest

from tidelog import scan, spark
from tidelog.errors import MissingDependency


@pytest.mark.parametrize(
    ("package", "name", "module", "extra"),
    [
        (spark, "table", "tidelog.spark.tables", "spark"),
        (scan, "read", "tidelog.scan.reader", "arrow"),
        (scan, "schema", "tidelog.scan.rows", "arrow"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: object, name: str, module: str, extra: str
) -> None:
    monkeypatch.delitem(vars(package), name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=rf"{name} needs .*'tidelog\[{extra}\]'"):
        getattr(package, name)


def test_names_are_listed_before_they_are_loaded() -> None:
    assert set(scan.__all__) <= set(dir(scan))
    assert set(spark.__all__) <= set(dir(spark))
