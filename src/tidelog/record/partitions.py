"""Partitions of a column of keys, by kernel; Arrow and Numba are imported when it is called."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


def choose_partitions(
    keys: "pa.Array[pa.Scalar[pa.DataType]] | pa.ChunkedArray[pa.Scalar[pa.DataType]]",
    partition_count: int,
    *,
    keyless: int,
) -> "npt.NDArray[np.int32]":
    """Which partition each record goes to, as Kafka's clients would send it.

    Args:
        keys: Binary or text of any kind; other types are refused by Arrow's cast.
        partition_count: From 1 on.
        keyless: The partition of records whose key is null.

    Returns:
        int32[n], each from 0 to `partition_count` - 1.
    """
    import numpy as np
    import pyarrow as pa

    from tidelog.record.kernels.murmur import partitions_of

    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    found = [np.empty(0, np.int32)]
    for chunk in chunks:
        column = chunk.cast(pa.binary())
        out = np.empty(len(column), np.int32)
        if pa.types.is_null(chunk.type) or column.null_count == len(column):
            out[:] = keyless
        else:
            _, ends, data_buffer = column.buffers()
            assert ends is not None
            offsets = np.frombuffer(memoryview(ends), np.int32)[column.offset :][: len(column) + 1]
            data = np.frombuffer(memoryview(data_buffer or b""), np.uint8)
            nulls = np.asarray(column.is_null(), np.uint8)
            partitions_of(data, offsets, nulls, partition_count, keyless, out)
        found.append(out)
    return np.concatenate(found)
