"""Runs one attempt of a sink's task in a separate process; the attempt writes and never commits.

The script's arguments are the bootstrap servers, the topic and the number of rows. The script never
ends by itself.
"""

import sys
import threading
from collections.abc import Iterator

import pyarrow as pa

from tidelog.spark.broker_sink import Claim, send
from tidelog.spark.sink_options import SinkOptions


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows, then block forever."""
    yield pa.record_batch({"value": [f"row {n}".encode() for n in range(count)]})
    threading.Event().wait()


def main() -> None:
    """Write, and wait to be killed."""
    bootstrap, topic, count = sys.argv[1:]
    options = SinkOptions(bootstrap=bootstrap, topic=topic, exactly_once=True)
    send(options, batches(int(count)), task=0, claim=Claim(f"test/{topic}/0", 0))


if __name__ == "__main__":
    main()
