"""Rows of the hours of a lag."""

from tidelog.jobs.lag.job import GroupLag, hour_rows


def test_records_without_a_time_precede_the_hour_of_the_epoch() -> None:
    group = GroupLag("readers", hours={("t", "record", 0): 3, ("t", "record", None): 2})
    assert [(row[4], row[5]) for row in hour_rows([group])] == [(None, 2), (0, 3)]
