"""Number of threads that decode records."""

import os

import pytest

from tidelog.scan.parallel import THREADS_MAX, thread_count


def test_a_system_without_affinities_uses_all_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for cores, threads in ((6, 6), (None, 1), (1_000, THREADS_MAX)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert thread_count() == threads
