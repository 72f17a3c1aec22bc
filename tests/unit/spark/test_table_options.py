"""Options of tables and serializers: allowed and refused combinations."""

import pytest

from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.spark.options import SourceOptions, TableOptions, read_source_options
from tidelog.spark.stream_options import read_stream_options

NOW = 1_700_000_000_000
BASE = {"path": "/logs", "subscribe": "t"}


def read(**options: str) -> SourceOptions:
    return read_source_options(BASE | options, Env(clock=ManualClock(NOW)))


def test_a_table_is_requested_with_its_time() -> None:
    assert read().table is None
    assert read(table="true").table == TableOptions()
    asked = read(table="true", asOf="-1h", inexact="mark")
    assert asked.table == TableOptions(at_ms=NOW - 3_600_000, inexact="mark")
    assert not asked.pushes_down


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"asOf": "-1h"}, "asOf applies only with table=true"),
        ({"inexact": "mark"}, "inexact applies only with table=true"),
        ({"table": "true", "startingTimestamp": "5"}, "startingTimestamp does not apply to tables"),
        ({"table": "true", "endingOffsets": "latest"}, "endingOffsets does not apply to tables"),
        ({"table": "true", "splitBytes": "5"}, "splitBytes does not apply to tables"),
        ({"table": "true", "isolation": "read_committed"}, "which show only committed records"),
        ({"table": "true", "pushdown": "false"}, "pushdown does not apply to tables"),
        ({"table": "maybe"}, "option table=maybe"),
        ({"table": "true", "inexact": "guess"}, "option inexact=guess"),
        ({"keyAs": "int16"}, "option keyAs=int16"),
    ],
)
def test_options_that_have_no_meaning_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(**options)


def test_a_stream_is_no_table() -> None:
    with pytest.raises(InvalidRequest, match="table is for batches"):
        read_stream_options(BASE | {"table": "true"})
    assert read_stream_options(BASE | {"keyAs": "int64"}).source.serdes == {"key": "int64"}
