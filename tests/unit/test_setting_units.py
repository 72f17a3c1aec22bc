"""Values of settings with a unit: accepted forms, and the advice for refused forms."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidelog
from tidelog.config import BROKER_CONFIGS, TOPIC_CONFIGS, amount_text, plain_settings
from tidelog.config.units import _UNITS, _unit_of
from tidelog.config.values import INTEGER_MAX
from tidelog.errors import ConfigError

DAY = 86_400_000


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("retention.ms", "7d", 7 * DAY),
        ("retention.ms", " 1d12h ", DAY + DAY // 2),
        ("retention.ms", "1.5h", 5_400_000),
        ("retention.ms", "2w", 14 * DAY),
        ("retention.ms", "500ms", 500),
        ("retention.ms", "90 min", 5_400_000),
        ("segment.ms", "1h", 3_600_000),
        ("log.retention.hours", "7d", 168),
        ("log.retention.minutes", "2h", 120),
        ("offsets.retention.minutes", "7d", 10_080),
        ("sasl.oauthbearer.clock.skew.seconds", "1m", 60),
        ("tidelog.busy.poll.us", "1ms", 1000),
        ("segment.bytes", "1GiB", 1 << 30),
        ("segment.bytes", "1GB", 10**9),
        ("segment.bytes", "100 mib", 100 << 20),
        ("segment.bytes", "1.5KiB", 1536),
        ("index.interval.bytes", "4KiB", 4096),
        ("retention.bytes", "1TiB", 1 << 40),
        ("log.cleaner.dedupe.buffer.size", "128MiB", 1 << 27),
        ("max.message.bytes", "512B", 512),
    ],
)
def test_amounts_become_numbers_of_the_settings_unit(name: str, text: str, plain: int) -> None:
    assert plain_settings({name: text}) == {name: str(plain)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", " 86400000 "),
        ("segment.bytes", "+5"),
        ("cleanup.policy", "7d"),
        ("min.cleanable.dirty.ratio", "0.5"),
        ("retention.msx", "soon"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("retention.ms", "1e3"),
        ("retention.ms", "0.5"),
        ("some.vendors.ms", "7 moons"),
        ("compression.gzip.level", "1h"),
        ("retention.ms", None),
    ],
)
def test_other_texts_stay_as_they_are(name: str, text: str | None) -> None:
    assert plain_settings({name: text}) == {name: text}


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("retention.ms", "1GiB", "milliseconds, or a length of time such as 7d"),
        ("retention.ms", "7D", "milliseconds, or a length"),
        ("retention.ms", "1M", "milliseconds, or a length"),
        ("retention.ms", "-7d", "milliseconds, or a length"),
        ("retention.ms", "1d 5", "milliseconds, or a length"),
        ("retention.ms", "10us", "must be a whole number of milliseconds"),
        ("log.retention.hours", "90m", "must be a whole number of hours"),
        ("segment.bytes", "7d", "bytes, or a size such as 1GiB"),
        ("segment.bytes", "1G", "(powers of 1000 or 1024); write 1GB or 1GiB"),
        ("segment.bytes", "64k", "write 64kB or 64KiB"),
        ("segment.bytes", "0.5B", "must be a whole number of bytes"),
        ("segment.bytes", "5GiB", "is 5368709120 bytes; the maximum is 2147483647"),
        ("retention.ms", "999999999999d", "the maximum is 9223372036854775807"),
    ],
)
def test_refused_amount_names_the_forms(name: str, text: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plain_settings({name: text})
    assert advice in str(caught.value)
    assert caught.value.key == name


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("retention.ms", "604800000", "7d"),
        ("segment.ms", "5400000", "1h30m"),
        ("log.retention.hours", "168", "7d"),
        ("segment.bytes", "1073741824", "1GiB"),
        ("segment.bytes", "1000000", "1MB"),
        ("max.message.bytes", "1048588", None),
        ("retention.ms", "-1", None),
        ("flush.ms", "9223372036854775807", None),
        ("retention.ms", "123456789", None),
        ("cleanup.policy", "delete", None),
        ("num.partitions", "1000", None),
    ],
)
def test_short_forms_beside_numbers(name: str, text: str, shown: str | None) -> None:
    assert amount_text(name, text) == shown


NAMES = [key.name for key in (*TOPIC_CONFIGS, *BROKER_CONFIGS)]


def _largest(name: str) -> int:
    key = next(key for key in (*TOPIC_CONFIGS, *BROKER_CONFIGS) if key.name == name)
    return INTEGER_MAX[key.kind.type_name]


@given(
    st.sampled_from([name for name in NAMES if _unit_of(name) is not None]),
    st.one_of(
        st.integers(-2, 2**63 - 1),
        st.builds(
            lambda number, unit: number * unit,
            st.integers(1, 400),
            st.sampled_from([1000, 60_000, 3_600_000, DAY, 1024, 1 << 20, 1 << 30, 10**6, 10**9]),
        ),
    ),
)
def test_short_forms_read_back_to_the_same_number(name: str, number: int) -> None:
    shown = amount_text(name, str(number))
    if shown is not None and number <= _largest(name):
        assert plain_settings({name: shown}) == {name: str(number)}


def test_every_setting_in_ms_or_bytes_has_its_unit() -> None:
    """If a setting's name shows that its unit is ms or bytes, its type is numeric."""
    for key in (*TOPIC_CONFIGS, *BROKER_CONFIGS):
        if _unit_of(key.name) is not None:
            assert key.kind.type_name in ("int", "long"), key.name
    assert _unit_of("log.cleaner.io.max.bytes.per.second") is None
    assert {unit.size for unit in _UNITS.values()} >= {1, 1000}


def test_all_refused_amounts_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"retention.ms=1GiB: .*; segment.bytes=7d: "):
        plain_settings({"retention.ms": "1GiB", "segment.ms": "1h", "segment.bytes": "7d"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention.ms", "seven", "must be a whole number >= -1, or a length of time such as 7d"),
        ("segment.bytes", "1KB", "is 1000 bytes; must be a whole number >= 1048576"),
        ("segment.bytes", "1000", "must be a whole number >= 1048576"),
    ],
)
def test_an_error_has_the_given_text_and_names_units(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with tidelog.open(str(tmp_path / "d"), writable=True) as log:
        with pytest.raises(ConfigError, match=re.escape(f"{name}={text}: {message}")):
            log.create_topic("flights", config={name: text})
        log.create_topic("flights")
        with pytest.raises(ConfigError, match=re.escape(f"{name}={text}: {message}")):
            log.alter_config("flights", {name: text})


def test_the_library_accepts_units(tmp_path: Path) -> None:
    with tidelog.open(str(tmp_path / "d"), writable=True) as log:
        log.create_topic("flights", config={"retention.ms": "7d", "segment.bytes": "1GiB"})
        assert log.topic("flights").given == {
            "retention.ms": str(7 * DAY),
            "segment.bytes": str(1 << 30),
        }
        log.alter_config("flights", {"retention.ms": "36h", "segment.bytes": None})
        assert log.topic("flights").given == {"retention.ms": str(36 * 3_600_000)}
        with pytest.raises(ConfigError, match="a length of time such as 7d"):
            log.alter_config("flights", {"retention.ms": "1GiB"})
