"""Ports for brokers that restart are outside the range of ports that the system assigns."""

from pathlib import Path

import pytest
from tests.worlds.kafka import broker


@pytest.mark.parametrize(
    ("said", "ports"),
    [
        ("32768\t60999\n", range(20_768, 32_768)),
        ("16000\t65535\n", range(4_000, 16_000)),
        ("9000\t65000\n", range(2_000, 9_000)),
        ("1024\t65535\n", broker.SOME_PORTS),
    ],
)
def test_steady_ports_are_below_the_ports_of_connections(
    tmp_path: Path, said: str, ports: range
) -> None:
    path = tmp_path / "range"
    path.write_text(said)
    assert broker.steady_ports(path) == ports


def test_steady_ports_have_a_default(tmp_path: Path) -> None:
    assert broker.steady_ports(tmp_path / "none") == broker.SOME_PORTS
    assert broker.free_port() in broker.steady_ports()
