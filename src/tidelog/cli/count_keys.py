"""Output of `tidelog count --by key` and `count --repeated`."""

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural, share_text, verb
from tidelog.arguments import KeyOrder
from tidelog.cli import output
from tidelog.cli.cells import decoded, decoder, decoders
from tidelog.cli.options import Encoding, Format, ReadFormat
from tidelog.cli.places import parse_target
from tidelog.cli.surroundings import Surroundings

if TYPE_CHECKING:
    from tidelog.cli.output import Cell
    from tidelog.scan.key_counts import KeyCount, KeyCounts, RepeatedRecords

_KEYS: Final = output.columns(
    output.detail("topic"),
    output.key("key", least=8),
    output.number("partition"),
    output.count("records"),
    output.share("records_share"),
    output.size("bytes"),
    output.share("bytes_share"),
)
_REPEATED: Final = output.columns(
    output.detail("topic"),
    output.key("key", least=8),
    output.count("records"),
    output.time("create_time"),
    output.number("partition", "offset"),
    output.minor(output.number("last_partition")),
    output.number("last_offset"),
    output.minor(output.size("bytes")),
)


def print_by_key(
    surroundings: Surroundings,
    counts: "KeyCounts",
    order: KeyOrder,
    counted: str,
    target: str,
    form: tuple[Format, Encoding],
) -> None:
    """Print the largest keys.

    Args:
        surroundings: Its stdout gets the table.
        counts: The keys.
        order: Order of the keys.
        counted: A sentence with the number of records.
        target: The topic or partition.
        form: Format of the rows and encoding of the keys.
    """
    kind, encoding = form
    is_table, decode = kind is Format.TABLE, decoders(ReadFormat(kind))(encoding)
    output.print_verdict(surroundings, f"{_largest_text(counts, order, encoding)}; {counted}", kind)
    topic, _ = parse_target(target)
    rows: list[list[Cell]] = [
        [
            topic,
            decoded(decode, one.key, "key", topic),
            "several" if is_table and one.partition is None else one.partition,
            one.records,
            one.records / counts.records,
            one.size_bytes,
            one.size_bytes / counts.size_bytes if counts.size_bytes else None,
        ]
        for one in counts.counts
    ]
    if is_table and (others := _others_text(counts)):
        records = counts.records - sum(one.records for one in counts.counts)
        size = counts.size_bytes - sum(one.size_bytes for one in counts.counts)
        shares = records / counts.records, size / counts.size_bytes if counts.size_bytes else None
        rows.append([topic, f"... {others}", None, records, shares[0], size, shares[1]])
    if rows or not is_table:
        output.print_rows(surroundings, _KEYS, rows, kind)


def _keyed(counts: "KeyCounts") -> "list[KeyCount]":
    return [one for one in counts.counts if one.key is not None]


def _others_text(counts: "KeyCounts") -> str:
    """Return words for the keys that are not shown; empty if all are shown."""
    others = counts.keys - len(_keyed(counts))
    return plural(others, "other key") if others else ""


# Maximum number of characters of a key in a sentence. The table shows more of the key.
_KEY_SHOWN: Final = 40


def _largest_text(counts: "KeyCounts", order: KeyOrder, encoding: Encoding) -> str:
    """Return how many of the largest keys together have at least half of the bytes or records.

    The text also has the exact share of these keys, and the largest key and its share.
    If all shown keys together have less than half, their number is returned instead.
    """
    if not counts.keys:
        return "no record has a key" if counts.records else "there are no records"
    is_by_bytes = order is KeyOrder.BYTES
    keyed = _keyed(counts)
    sums = list(accumulate(one.size_bytes if is_by_bytes else one.records for one in keyed))
    whole = counts.size_bytes if is_by_bytes else counts.records
    text = plural(counts.keys, "key")
    if sums and whole:
        number = next((n for n, amount in enumerate(sums, 1) if 2 * amount >= whole), len(sums))
        share = share_text(sums[number - 1] / whole)
        first = output.data_text(decoder(encoding)(keyed[0].key))
        if len(first) > _KEY_SHOWN:
            first = f"{first[: _KEY_SHOWN - 1]}…"
        if number == 1:
            text = f"1 of {text} ({first}) has {share} of the {order}"
        else:
            most = "largest" if is_by_bytes else "most frequent"
            text = (
                f"{number:,} of {text} have {share} of the {order}"
                f" ({most}: {first}, {share_text(sums[0] / whole)})"
            )
    if counts.without_key:
        keyless = counts.without_key
        text += f"; {plural(keyless, 'record')} {verb(keyless, 'has', 'have')} no key"
    return text


def print_repeated(
    surroundings: Surroundings,
    repeated: "RepeatedRecords",
    counted: str,
    target: str,
    form: tuple[Format, Encoding],
    zone: str | None,
) -> None:
    """Print the records that occur more than once.

    Args:
        surroundings: Its stdout gets the table.
        repeated: The records.
        counted: A sentence with the number of records.
        target: The topic or partition.
        form: Format of the rows and encoding of the keys.
        zone: Zone of the times.
    """
    kind, encoding = form
    is_table, decode = kind is Format.TABLE, decoders(ReadFormat(kind))(encoding)
    verdict = "no record occurs more than once"
    if repeated.repeated:
        about = "about " if repeated.is_estimate else ""
        keys = f"{about}{plural(repeated.keys, 'key')}"
        records = f"{plural(repeated.repeated, 'record')} of {keys}"
        copies = plural(repeated.copies, "copy", "copies")
        verdict = (
            f"{records} {verb(repeated.repeated, 'occurs', 'occur')} more than once ({copies})"
        )
    output.print_verdict(surroundings, f"{verdict}; {counted}", kind)
    topic, _ = parse_target(target)
    rows: list[list[Cell]] = [
        [
            topic,
            decoded(decode, one.key, "key", f"{topic}-{one.partition} offset {one.offset}"),
            one.records,
            one.create_ms,
            one.partition,
            one.offset,
            None if is_table and one.last_partition == one.partition else one.last_partition,
            one.last_offset,
            one.size_bytes,
        ]
        for one in repeated.counts
    ]
    if rows or not is_table:
        output.print_rows(surroundings, _REPEATED, rows, kind, zone=zone, total=repeated.repeated)
