"""Measures a cleaning by tidelog in its own process: CPU, memory, and the loading of kernels.

`bench/compaction.py` runs this module with a job's file. The output is one line of JSON, with
separate figures for the loading of kernels.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.storage.compaction.job import CleaningJob
    from tidelog.types import Codec

STATUS = Path("/proc/self/status")


def memory_bytes(name: str) -> int:
    """Return a memory field of this process's status in /proc, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def main(job_path: str) -> None:
    """Clean a small log, which loads all kernels; then run the job."""
    from bench.compaction_logs import job_of, write_head
    from tidelog.env import os_env
    from tidelog.storage.compaction.job import CleaningJob
    from tidelog.storage.compaction.worker import clean

    job = CleaningJob.from_json(Path(job_path).read_text())
    with TemporaryDirectory() as folder:
        started_s = time.process_time()
        small = Path(folder) / "small-0"
        sources = write_head(small, 2_000, 500, codec_of(job))
        written_s = time.process_time()
        clean(job_of(small, sources, replace(job.rules, dedupe_buffer_bytes=1 << 20)), os_env())
        loading_s = time.process_time() - written_s
    Path("/proc/self/clear_refs").write_text("5")
    base_bytes = memory_bytes("VmRSS")
    before_s = time.process_time()
    cleaned = clean(job, os_env())
    found = {
        "cpu_s": time.process_time() - before_s,
        "loading_s": loading_s + written_s - started_s,
        "base_bytes": base_bytes,
        "peak_bytes": memory_bytes("VmHWM"),
        "records": sum(group.records_before for group in cleaned.groups),
        "left": sum(group.records_after for group in cleaned.groups),
        "keys": cleaned.keys,
        "bytes_read": cleaned.bytes_read,
        "bytes_written": cleaned.bytes_written,
    }
    print(json.dumps(found))


def codec_of(job: "CleaningJob") -> "Codec":
    """Return the codec of the job's first batch.

    The small log is written with this codec, so that cleaning it loads the codec's kernels and
    library, too.
    """
    from tidelog.record.batch_walk import walk
    from tidelog.storage import log_files

    path = Path(job.directory) / log_files.log_file_name(job.sources[0].base_offset)
    with path.open("rb") as file:
        return next(walk(file.read(1 << 20))).codec


if __name__ == "__main__":
    main(sys.argv[1])
