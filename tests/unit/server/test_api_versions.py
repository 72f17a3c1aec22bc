"""Responses of ApiVersions to unsupported versions and invalid client names."""

from tidelog.protocol.messages.metadata import ApiVersion
from tidelog.server.api.metadata import answer
from tidelog.server.api.table import ROWS


def test_an_unsupported_version_gets_the_supported_ones_of_this_api_only() -> None:
    """The response is the same as the response of Kafka 4.3 to version 99."""
    told = answer(legacy=False, error_code=35)
    assert told.error_code == 35
    assert told.api_keys == [ApiVersion(api_key=18, min_version=0, max_version=4)]


def test_an_invalid_client_name_gets_no_versions() -> None:
    assert answer(legacy=False, error_code=42).api_keys == []


def test_versions_for_legacy_clients_are_declared() -> None:
    for row in ROWS:
        assert row.api.first_declared <= row.first_for(legacy=True) <= row.api.last, row.api.name


def test_features_with_minimum_zero_are_hidden_from_older_clients() -> None:
    """Clients of Kafka 3.3 to 3.7 fail at a feature with minimum 0 (KAFKA-17492).

    These clients send version 3.
    """
    told = answer(legacy=False, version=3)
    assert [row.name for row in told.supported_features] == ["metadata.version"]
    newer = answer(legacy=False, version=4)
    assert min(row.min_version for row in newer.supported_features) == 0
    assert told.finalized_features == newer.finalized_features
