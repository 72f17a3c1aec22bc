"""A range on the append clock selects messages of format 1 by their LogAppendTime."""

from collections.abc import Sequence

import pytest
from tests.faults import seeded_env
from tests.worlds.directories.logs import PATH, TOPIC, names, new_dir, path_of, write
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.directory import Directory
from tidelog.env import Env
from tidelog.types import Codec, NewRecord

T0 = 1_500_000_000_000
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
# Format and LogAppendTime (ms after T0) of sets of two messages each; None for a set with create
# times.
SETS = ((0, None), (1, 0), (1, None), (1, 5), (1, 7), (0, None))


def legacy_dir(codec: Codec) -> Env:
    """Return the files of a directory as Kafka writes it, with two segments of three sets each."""
    env = seeded_env(1)
    new_dir(env).close()
    for name in names(env):
        if name.startswith("0"):
            env.files.remove(path_of(name))
    for first in (0, 6):
        data = bytearray()
        for number in range(first // 2, first // 2 + 3):
            magic, stamp = SETS[number]
            data += build_legacy_set(
                [NewRecord(key=b"k", value=b"v", timestamp=T0 + 5) for _ in range(2)],
                magic=magic,
                codec=codec,
                base_offset=2 * number,
                append_time_ms=None if stamp is None else T0 + stamp,
            )
        write(env, f"{first:020}.log", bytes(data))
    return env


@pytest.mark.parametrize("has_zones", [False, True])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("start", "end", "selected"),
    [
        (None, T0 + 100, [2, 3, 6, 7, 8, 9]),
        (0, None, [2, 3, 6, 7, 8, 9]),
        (T0, T0 + 5, [2, 3]),
        (T0 + 1, T0 + 7, [6, 7]),
        (T0 + 6, None, [8, 9]),
        (T0 + 8, None, []),
    ],
)
def test_messages_are_selected_by_their_append_time(
    *, codec: Codec, has_zones: bool, start: int | None, end: int | None, selected: Sequence[int]
) -> None:
    env = legacy_dir(codec)
    if has_zones:
        Directory.open(PATH, writable=True, env=env).close()
    with Directory.open(PATH, env=env) as directory:
        scan = directory.scan(TOPIC, start=start, end=end, clock="append")
        assert scan.to_arrow().read_all().column("offset").to_pylist() == selected
        counts = scan.counts()
        assert (counts.records, counts.without_time) == (len(selected), 6)
