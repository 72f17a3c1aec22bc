"""Clients of the brokers of a place, as jobs open them."""

import pytest

from tidelog.env import os_env
from tidelog.jobs.place_topics import open_cluster, open_topics
from tidelog.remote.cluster import TIMEOUT_S
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.spark.places import Place


@pytest.mark.parametrize(
    ("client", "timeout_s"),
    [
        ({}, TIMEOUT_S),
        ({"request.timeout.ms": "2500"}, 2.5),
        ({"default.api.timeout.ms": "2500"}, 2.5),
        ({"request.timeout.ms": "2500", "default.api.timeout.ms": "9000"}, 9.0),
    ],
)
def test_requests_have_the_timeout_of_the_client_settings(
    client: dict[str, str], timeout_s: float
) -> None:
    place = Place.parse("kafka://h:1", client=client)
    with open_cluster(place) as cluster:
        assert cluster.timeout_s == timeout_s
    with open_topics(place, os_env()) as log:
        assert isinstance(log, RemoteDirectory)
        assert log.cluster.timeout_s == timeout_s
