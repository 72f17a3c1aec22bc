"""If another process removes a segment during a command, no append times count as lost."""

from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.command_line import Cli

from tidelog.storage import log_files
from tidelog.types import NewRecord

CONFIG = (
    "cleanup.policy=compact",
    "internal.segment.bytes=2000",
    "tidelog.compaction.scheduler=generational",
)


@pytest.mark.parametrize("command", ["describe t", "compact t --plan", "tier --status"])
def test_no_append_times_of_a_removed_segment_are_reported_as_lost(
    tmp_path: Path, command: str
) -> None:
    cli = Cli(tmp_path / "data")
    settings = (f"tidelog.tier.url={(tmp_path / 'store').as_uri()}", "remote.storage.enable=true")
    config = [*CONFIG, *(settings if command.startswith("tier") else ())]
    cli.ok("create", "t", *(word for each in config for word in ("--config", each)))
    for number in range(60):
        cli.append(NewRecord(key=b"%d" % number, value=b"v" * 100), topic="t")
    times = sorted((cli.data / "t-0").glob(f"*{log_files.APPEND_TIME_SUFFIX}"))[1]
    reads, last = 0, 0

    def remove(call: str, path: str) -> None:
        nonlocal reads
        if call == "open" and path == str(times):
            reads += 1
            if reads == last:
                for suffix in log_files.LOG_FIRST:
                    if suffix != log_files.ZONES_SUFFIX:  # removed after the append times
                        times.with_suffix(suffix).unlink(missing_ok=True)

    seen = Cli(cli.data, files=HookedDisk(remove))
    assert "it had" not in seen.ok(*command.split()).err
    reads, last = 0, reads
    assert last
    assert "it had" not in seen.ok(*command.split()).err
    assert not times.exists()
