"""Selects the tests of `./run test`: at least one case of every behavior, in ten minutes.

`./run test all` runs everything. If the cases of a test are expensive and check nearly the same,
the core runs only some of them. A checksum of their names selects them, so that similar tests get
different cases.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final, TypeVar

T = TypeVar("T")

# Number of cases of each test function, by folder, file or function; the longest matching name
# counts.
CASES: Final[Mapping[str, int]] = {
    "tests/contracts": 4,
    "tests/examples": 1,
    "tests/fault": 1,
    "tests/histories": 2,
    "tests/histories/test_simulated.py": 1,
    "tests/peers": 1,
    "tests/property": 3,
    "tests/property/test_disposable_files.py": 1,
    "tests/property/test_generations_model.py": 1,
    "tests/property/test_log_model.py": 2,
    "tests/server/clients": 2,
    "tests/server/kill": 1,
    "tests/server/refused": 1,
    "tests/server/rights": 1,
    "tests/server/test_loop_lists.py": 4,
    "tests/server/test_loop_old_clients.py": 1,
    "tests/server/test_unreachable_leaders.py": 1,
    "tests/spark": 1,
    "tests/unit/cli/test_one_grammar.py": 20,
    "tests/unit/cli/test_terminal_widths.py": 8,
    "tests/unit/jobs/test_mirror_crash.py": 1,
    "tests/unit/protocol/test_kio.py": 40,
    "tests/unit/scan/test_split_times.py": 4,
    "tests/unit/scan/test_wrong_offsets.py": 1,
    "tests/unit/server/test_repeated_fetches.py": 10,
    "tests/unit/server/security/test_authorizer.py": 40,
    "tests/unit/server/transactions/test_kills.py": 1,
    "tests/unit/storage/checks/test_log_damage.py": 8,
    "tests/unit/storage/test_attach_crash.py": 1,
    "tests/unit/storage/test_exchange.py::test_power_loss_at_every_call": 1,
    "tests/unit/storage/test_index_proof.py::test_no_single_bit_of_an_index_hides_a_record": 4,
    "tests/unit/storage/test_writers.py::test_power_loss_at_every_call_and_the_batch_again": 1,
    "tests/unit/storage/tiers/test_faults.py::test_power_loss_at_every_call_of_the_disk": 1,
    "tests/unit/test_choices.py": 40,
    "tests/unit/test_frames.py": 9,
}
# Tests or files that only `./run test all` runs, with their replacement in the core.
LEFT_OUT: Final[Mapping[str, str]] = {
    "tests/fault/test_log_crash.py::test_seeded_states": "test_seeded_states_in_full beside it",
    "tests/fault/test_log_crash.py::test_seeded_states_of_several_partitions": (
        "test_crash_during_recovery_of_several_partitions beside it"
    ),
    "tests/peers/test_back_and_forth.py": "tests/peers/test_append_times.py, test_own_directory.py",
    "tests/peers/test_demo_log.py": "tests/peers has other logs of ours that Kafka reads",
    "tests/peers/test_share_clients.py": "tests/server/test_share_groups.py, test_share_fetch.py",
    "tests/peers/test_stream_epochs.py": "tests/unit/spark/test_stream_batches.py",
    "tests/server/test_loop_existing.py::test_groups": "test_members_of_a_group beside it",
    "tests/server/test_loop_existing.py::test_quotas": "test_producers_of_a_partition beside it",
    "tests/server/test_loop_existing.py::test_rules": "test_producers_of_a_partition beside it",
    "tests/server/test_loop_existing.py::test_users": "test_producers_of_a_partition beside it",
    "tests/spark/jobs/test_audit_broker.py": "tests/spark/jobs/test_audit.py",
    "tests/spark/jobs/test_bootstrap_kill.py": "tests/spark/jobs/test_bootstrap.py",
    "tests/spark/jobs/test_descriptions.py": "tests/unit/jobs",
    "tests/spark/jobs/test_mirror_broker.py": "tests/peers/test_mirror_broker.py",
    "tests/spark/jobs/test_mirror_kill.py": "tests/unit/jobs/test_mirror_crash.py",
    "tests/spark/suite/test_connector.py": "tests/spark/suite/test_sources.py",
    "tests/spark/test_broker_kill.py": "tests/spark/test_sink_stream.py, tests/server/kill",
    "tests/spark/test_cluster.py": "the same jobs in one process",
    "tests/spark/test_connect_jobs.py": "the same jobs in a classic session",
    "tests/spark/test_executor_kill.py": "tests/unit/spark/test_broker_claims.py",
    "tests/spark/test_sink_kill.py": "tests/fault/test_sink_failures.py",
    "tests/spark/test_stream_broker.py": "tests/spark/test_sink_stream.py, test_own_broker.py",
    "tests/spark/test_stream_kill.py": "tests/spark/test_stream.py",
    "tests/unit/test_readme.py::test_spark": "tests/spark, tests/examples",
}

# The core tries every n-th failing call and moment of a crash.
MOMENTS: Final = 3


class _Run:
    one_in: ClassVar[int] = 1


def begin() -> None:
    """Let this process run only the core."""
    _Run.one_in = MOMENTS


def one_in() -> int:
    """Return n; the process tries one of n moments."""
    return _Run.one_in


def thinned(moments: Iterable[T]) -> Iterator[T]:
    """Yield the first moment and every n-th after it in the core, otherwise all moments."""
    return islice(moments, 0, None, _Run.one_in)


def chosen(names: Sequence[str]) -> set[str]:
    """Return pytest's node ids that belong to the core."""
    cases: dict[str, list[str]] = {}
    for name in names:
        if not any(
            name == left or name.startswith((f"{left}::", f"{left}[", f"{left}/"))
            for left in LEFT_OUT
        ):
            cases.setdefault(name.partition("[")[0], []).append(name)
    return {name for function, every in cases.items() for name in _some(function, every)}


def _some(function: str, cases: Sequence[str]) -> Iterable[str]:
    fits = [folder for folder in CASES if f"{function}/".startswith((f"{folder}/", f"{folder}::"))]
    if not fits:
        return cases
    return sorted(cases, key=lambda name: zlib.crc32(name.encode()))[: CASES[max(fits, key=len)]]
