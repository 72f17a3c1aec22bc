"""The values of a broker's metrics after a session, one line per series."""

import re
import urllib.request
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tests.worlds.waiting import PATIENCE_S

SETTINGS: Final = {
    "tidelog.metrics.listen": "127.0.0.1:0",
    # By chance, the cleaner would run before or after the metrics are read.
    "log.cleaner.enable": "false",
}
_PREFIX: Final = "tidelog_"
_PARTITION: Final = "tidelog_partition_"
_VERSION: Final = re.compile(r'version="[^"]*"')
_BUCKET: Final = re.compile(r'(\w+)_bucket\{(.*),le="([^"]+)"\} (\d+)')
_CONNECTIONS: Final = "tidelog_connections "
# Times of Metadata requests are left out. `Stage.settle` sends such requests before the clock
# moves, and the broker may read the time of a response before or after the move.
_VARYING: Final = re.compile(r'tidelog_request_seconds\w*\{api="Metadata"')


def scraped(address: object) -> list[str]:
    """Return the lines with values of tidelog's own metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as response:
        text: str = response.read().decode()
    lines = [line for line in text.splitlines() if line.startswith(_PREFIX)]
    # The broker lists partitions in the order in which they were opened, which varies.
    others = [line for line in lines if not line.startswith(_PARTITION)]
    return others + sorted(line for line in lines if line.startswith(_PARTITION))


def connections(lines: Iterable[str]) -> int:
    """Return the number of open connections in scraped lines."""
    return next(int(line.split()[1]) for line in lines if line.startswith(_CONNECTIONS))


def shown(lines: Iterable[str], polled: Collection[str]) -> Iterator[str]:
    """Yield scraped lines as they are recorded.

    Empty buckets of histograms are left out, and so are the APIs in `polled`, whose number of
    requests varies.
    """
    last, before = "", 0
    for line in lines:
        if _VARYING.match(line) or any(f'api="{api}"' in line for api in polled):
            continue
        bucket = _BUCKET.fullmatch(line)
        if bucket is None:
            yield _VERSION.sub('version="N"', line)
            continue
        name, labels, bound, total = bucket.groups()
        last, before = (last, before) if last == name + labels else (name + labels, 0)
        if int(total) > before:
            yield f"{name}{{{labels}}} up to {bound}: {int(total) - before}"
        before = int(total)
