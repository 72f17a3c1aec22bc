"""Appends Arrow tables to topics, for `tidelog.Directory` and clusters.

This module needs Arrow, numpy and numba, so it is imported only by calls that need these packages.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Final, cast

from tidelog.errors import InvalidRequest, RefusedRecords, partitions_text
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.append_types import BUILT, AppendResult
from tidelog.storage.log.batch_building import batch_bytes_for, batch_limit, stored_codec
from tidelog.storage.log.log import Log
from tidelog.storage.log.record_rules import RecordRules
from tidelog.types import ArrowStream, Codec

if TYPE_CHECKING:
    import pandas as pd


try:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tidelog.record.columns.encode import check_times, choose_partitions, encode_table
except ImportError as error:
    from tidelog.errors import MissingDependency

    raise MissingDependency(
        f"Arrow tables need pyarrow, numpy and numba: pip install 'tidelog[arrow]' ({error})"
    ) from error


# Maximum size in bytes of the batches that are appended in one write, with one append time. A
# single batch above this size is appended in a write of its own.
APPEND_BYTES: Final = 1 << 20

PARTITION_COLUMN: Final = "partition"


def append_table(
    log_dir: LogDir,
    topic: str,
    table: ArrowStream,
    *,
    keyless: int,
    codec: Codec,
    batch_bytes: int,
) -> dict[int, AppendResult]:
    """Append a table to a topic of a directory, as `tidelog.Directory.append_table` documents."""
    info = log_dir.topic(topic)
    rows = as_table(table)
    partitions, rows = choose_rows(rows, info.partitions, keyless)
    codec, level = stored_codec(info.config, codec)
    answers = {}
    for number in np.unique(partitions).tolist():
        own = np.flatnonzero(partitions == number)
        own_rows = rows if info.partitions == 1 else rows.take(own)
        log = log_dir.log(topic, number)
        log.use_kernels()
        batches = encode_table(
            own_rows,
            now_ms=log_dir.env.clock.now_ms(),
            codec=codec,
            level=level,
            batch_bytes=batch_bytes_for(batch_bytes, batch_limit(info.config)),
        )
        limit = min(info.config.segment_size_limit, APPEND_BYTES)
        try:
            answers[number] = append_encoded(log, batches, limit)
        except RefusedRecords as error:
            raise error.renumbered(own.tolist().__getitem__) from None
    return answers


def as_table(source: object) -> pa.Table:
    """Convert a table, batch or reader of Arrow, or another library's frame, to an Arrow table.

    Raises:
        InvalidRequest: The source has another type, a column that Arrow can't represent, or two
            columns with one name.
    """
    try:
        result = _without_views(_rows_of(source))
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRequest(f"table: {error}") from error
    names = result.column_names
    if len(set(names)) < len(names):
        repeated = ", ".join(name for name, count in Counter(names).items() if count > 1)
        raise InvalidRequest(f"more than one column has this name: {repeated}")
    return result


def _rows_of(source: object) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.RecordBatchReader):
        return source.read_all()
    if type(source).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(cast("pd.DataFrame", source), preserve_index=False)
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source).read_all()
    raise InvalidRequest(
        f"table is {type(source).__module__}.{type(source).__name__}; give an Arrow table, batch or"
        " reader, or a Polars or pandas frame (collect a lazy one)"
    )


def _without_views(table: pa.Table) -> pa.Table:
    """Cast view types, which Polars uses, to plain types.

    Arrow can't select rows of view types.
    """
    kinds = [_without_view(field.type) for field in table.schema]
    if kinds == table.schema.types:
        return table
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _without_view(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if isinstance(kind, pa.ListType | pa.LargeListType):
        of = kind.value_field.with_type(_without_view(kind.value_type))
        return pa.list_(of) if isinstance(kind, pa.ListType) else pa.large_list(of)
    if isinstance(kind, pa.StructType):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([one.with_type(_without_view(one.type)) for one in fields])
    return kind


def append_encoded(log: Log, batches: Iterator[bytearray], append_bytes: int) -> AppendResult:
    """Append encoded batches, up to `append_bytes` at a time; return the last append's result.

    Raises:
        RefusedRecords: A rule refuses records. The indexes count the records of all batches.
        The other errors of `Log.append_batches`.
    """
    answer, first = None, 0
    rules = RecordRules(str(log.context.topic_partition), log.context.config)
    for piece in _pieces(rules.sized(batches), append_bytes):
        try:
            answer = log.append_batches(piece, BUILT)
        except RefusedRecords as error:
            raise error.renumbered(partial(add, first)) from None
        first += answer.record_count
    if answer is None:
        raise InvalidRequest("an append needs at least one record")
    return answer


def _pieces(batches: Iterable[bytearray], append_bytes: int) -> Iterator[bytearray]:
    piece = bytearray()
    for batch in batches:
        if piece and len(piece) + len(batch) > append_bytes:
            yield piece
            piece = bytearray()
        piece = piece + batch if piece else batch
    if piece:
        yield piece


def choose_rows(
    table: pa.Table, partition_count: int, keyless: int
) -> tuple[npt.NDArray[np.int32], pa.Table]:
    """Return each row's partition, and the table without the partition column.

    Raises:
        InvalidRequest: A partition doesn't exist, or a column has the wrong type.
        InvalidTimestamp: A time is before 1970 (an integer may be -1, which means "no time").
    """
    check_times(table)
    _check_binary(table, "key")
    _check_binary(table, "value")
    if PARTITION_COLUMN in table.column_names:
        chosen = _as_numbers(table[PARTITION_COLUMN], keyless)
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < partition_count:
            raise InvalidRequest(
                f"column 'partition' has values from {chosen.min()} to {chosen.max()}; the topic"
                f" has {partitions_text(partition_count)}"
            )
        return chosen, table.drop_columns([PARTITION_COLUMN])
    if "key" not in table.column_names:
        return np.full(len(table), keyless, np.int32), table
    return choose_partitions(table["key"], partition_count, keyless=keyless), table


def _check_binary(table: pa.Table, name: str) -> None:
    if name not in table.column_names:
        return
    type_ = table[name].type
    kind = type_.value_type if isinstance(type_, pa.DictionaryType) else type_
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    if not (is_text or is_bytes or types.is_fixed_size_binary(kind) or types.is_null(kind)):
        raise InvalidRequest(f"column {name!r} is {type_}, must be binary or string")


def _as_numbers(
    column: "pa.ChunkedArray[pa.Scalar[pa.DataType]]", keyless: int
) -> npt.NDArray[np.int32]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidRequest(f"column 'partition' is {kind}, must be int32")
    try:
        numbers = column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"column 'partition': {error}") from error
    return np.asarray(numbers.combine_chunks().fill_null(keyless))
