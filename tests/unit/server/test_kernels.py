"""Loading kernels is easy on other threads, and leaves the interpreter as it was."""

import gc
import sys

import pytest

from tidelog.server import kernels


@pytest.mark.parametrize("fails", [False, True])
def test_interpreter_is_gentle_while_kernels_load(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    seen = list[tuple[float, bool]]()

    def load() -> None:
        seen.append((sys.getswitchinterval(), gc.isenabled()))
        if fails:
            raise ImportError

    monkeypatch.setattr(kernels, "load", load)
    before = sys.getswitchinterval(), gc.isenabled()
    try:
        kernels._load_quietly()
    except ImportError:
        assert fails
    assert [is_collecting for _, is_collecting in seen] == [False]
    assert seen[0][0] == pytest.approx(kernels.SWITCH_S)
    assert (sys.getswitchinterval(), gc.isenabled()) == before
