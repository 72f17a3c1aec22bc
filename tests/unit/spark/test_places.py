"""A place is given as one text: brokers, a path or a URL."""

import pytest

from tidelog.errors import InvalidRequest
from tidelog.spark.places import Place, as_place


def test_brokers() -> None:
    place = Place.parse("kafka://one:9092,[::1]:9093", client={"security.protocol": "SSL"})
    assert place.is_broker
    assert place.options() == {
        "kafka.bootstrap.servers": "one:9092,[::1]:9093",
        "kafka.security.protocol": "SSL",
    }
    assert str(place) == "kafka://one:9092,[::1]:9093"


@pytest.mark.parametrize("text", ["data", "/var/log s", "s3://bucket/logs", "memory:///logs"])
def test_directories(text: str) -> None:
    place = Place.parse(text)
    assert not place.is_broker
    assert place.options() == {"path": text}
    assert str(place) == text


def test_settings_of_a_store() -> None:
    place = Place.parse("s3://bucket/logs", store={"endpoint": "e"})
    assert place.options() == {"path": "s3://bucket/logs", "store.endpoint": "e"}


def test_settings_are_not_shown() -> None:
    place = Place.parse("kafka://one:9092", client={"sasl.password": "secret"})
    assert "secret" not in f"{place} {place!r}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kafka://", "'' is not HOST:PORT with a port up to 65535; give kafka://HOST:PORT"),
        ("kafka://one", "'one' is not HOST:PORT"),
        ("kafka://one:9092,", "'' is not HOST:PORT"),
        ("kafka://one:99999", "'one:99999' is not HOST:PORT"),
        ("  ", "empty place: give"),
    ],
)
def test_invalid_places_are_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Place.parse(text)


def test_settings_of_the_other_kind() -> None:
    with pytest.raises(InvalidRequest, match="client settings apply only to brokers"):
        Place.parse("data", client={"acks": "all"})
    with pytest.raises(InvalidRequest, match="settings of an object store do not apply"):
        Place.parse("kafka://one:1", store={"endpoint": "e"})


def test_a_text_will_do_for_a_place() -> None:
    assert as_place("data") == as_place(Place("data"))
