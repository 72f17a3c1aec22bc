"""A file system in memory that loses power, fills up and fails on demand, and an Env on it.

`DamageFileSystem` is a `FileSystem` of tidelog.env. It records every call that changes something
(its *journal*), so that one run of a workload gives the disks after thousands of crashes:

    env = seeded_env(7)
    run_workload(env)
    for state in env.files.crash_states(range(20_000)):
        check(reopen(state), state)         # str(state) names the seed and the call

These rules determine the content of the disk after a power loss. They are the rules of ext4, except
that a later change may survive without an earlier one, which ext4's journal happens to prevent:

1.  Bytes, size: the content as of the last `sync` is durable. Each write since then is
    independently kept, lost, or torn. Of a torn write, either only a slice of the bytes is kept, or
    each 512-byte sector is kept or lost on its own. A later write may survive even if an earlier
    write is lost. If a write extended the file and its bytes are lost, the file may still keep the
    larger size: the hole reads as zeros. Each truncation since then is independently kept or lost.
    Kept changes are applied in the order of the calls.
2. Names: the names as of the directory's last `sync_dir` are durable. Each creation, removal and
    rename since then is independently kept or lost. A rename is atomic: the old name or the new
    one, never both, never none. A rename between two directories is durable as soon as both have
    been synced. A file has one name. So if a rename of a file is lost, and a later removal or
    rename of the file is kept, the file loses its older name.
3.  Bytes and names are independent: `sync` of a new file does not keep its name, `sync_dir` does
    not keep bytes. So a kept rename of an unsynced file may show an empty file.
4.  If the name of a directory is lost, everything in it is lost too.
5.  Modification times since the last `sync` are kept or lost; locks and maps end.
6.  A failed `sync` leaves the file's unsynced writes in doubt forever, whatever is synced later
    (Linux marks such pages clean). Syncing again through the same handle is an AssertionError.
7.  Truncating a file while it is mapped is an AssertionError: in a real process the reader would
    get SIGBUS.

Failures (`Fault`): the n-th changing call, or the n-th reading call, fails. The call has no effect
and raises EIO or ENOSPC. A write may instead write only half of its bytes, without an error.
`limit_bytes` is the size of the disk: a write that does not fit writes only the bytes that fit, and
the next write raises ENOSPC.
"""

from tests.faults.crash import CrashState, Keep
from tests.faults.damage import DamageFileSystem, reopen
from tests.faults.fate import SECTOR_SIZE
from tests.faults.meter import Fault, FaultKind
from tests.faults.seeded import START_MS, SeededEnv, seeded_env

__all__ = [
    "SECTOR_SIZE",
    "START_MS",
    "CrashState",
    "DamageFileSystem",
    "Fault",
    "FaultKind",
    "Keep",
    "SeededEnv",
    "reopen",
    "seeded_env",
]
