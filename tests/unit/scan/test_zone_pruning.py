"""Parts of a segment that are read for a time range, and parts that the zone map counts."""

from tests.unit.storage.test_zone_map import APPEND, BASE, RECORD, encode, zone

from tidelog.scan.zone_pruning import ZoneQuestion, ZoneRange, find_ranges
from tidelog.storage.clocks.zone_map import Question, Zone, ZoneMap
from tidelog.types import INT64_MAX


def ranges(
    zones: list[Zone],
    times: tuple[int, int],
    offsets: tuple[int, int] = (0, INT64_MAX),
    *,
    is_committed: bool = False,
) -> list[ZoneRange]:
    """Return the ranges of a segment that a count uses if its zone map has these zones."""
    wanted = Question(RECORD, *times, *offsets)
    asked = ZoneQuestion(wanted, is_committed=is_committed, counts=True)
    return list(find_ranges(ZoneMap.decode(encode(zones)), asked, gap_bytes=0))


def test_the_start_of_a_range_is_inclusive_and_its_end_exclusive() -> None:
    zones = [zone(0, low=100, high=199)]
    assert not ranges(zones, (0, 100))
    assert ranges(zones, (0, 101))
    assert ranges(zones, (199, 200))
    assert not ranges(zones, (200, 300))
    assert not ranges(zones, (0, 1000), (0, BASE))
    assert ranges(zones, (0, 1000), (0, BASE + 1))
    assert ranges(zones, (0, 1000), (BASE + 9, INT64_MAX))
    assert not ranges(zones, (0, 1000), (BASE + 10, INT64_MAX))


def test_zones_inside_of_a_range_are_counted_and_not_read() -> None:
    zones = [zone(number, low=number * 10, high=number * 10 + 9) for number in range(24)]
    found = ranges(zones, (75, 165))
    assert [(part.start_position, part.end_position, part.records) for part in found] == [
        (700, 800, 0),
        (800, 800, 80),
        (1600, 1700, 0),
    ]


def test_zones_with_transactions_are_read_to_count_committed_records() -> None:
    zones = [zone(number, txn=number == 3) for number in range(8)]
    assert [part.records for part in ranges(zones, (0, 100))] == [80]
    found = ranges(zones, (0, 100), is_committed=True)
    read = [part for part in found if part.end_position > part.start_position]
    assert [(part.start_position, part.end_position) for part in read] == [(300, 400)]
    assert sum(part.records for part in found) == 70


def test_a_second_range_of_timestamps_leaves_out_zones_and_reads_cut_zones() -> None:
    zones = [zone(number, low=number * 10, high=number * 10 + 9) for number in range(5)]

    def parts(low: int, high: int) -> list[tuple[int, int, int]]:
        wanted = Question(APPEND, 0, INT64_MAX, 0, INT64_MAX)
        asked = ZoneQuestion(wanted, timestamps=(low, high), counts=True)
        found = find_ranges(ZoneMap.decode(encode(zones)), asked, gap_bytes=0)
        return [(part.start_position, part.end_position, part.records) for part in found]

    assert parts(10, 30) == [(100, 100, 20)]
    assert parts(15, 30) == [(100, 200, 0), (200, 200, 10)]
    assert parts(10, 29) == [(100, 100, 10), (200, 300, 0)]
    assert parts(50, 60) == []
    assert parts(0, INT64_MAX) == [(0, 0, 50)]
