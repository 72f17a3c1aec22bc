"""Loading kernels is easy on other threads, and leaves the interpreter as it was."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidelog.server import kernels
from tidelog.server.shared_objects import libraries, preload
from tidelog.storage.kernel_cache import CACHE_VARIABLE

LARGE_BYTES = 1 << 20
# What this process has of numba is loaded already: another one tells what loading does.
WATCHED = """
import gc, sys
import tidelog.server.kernels as kernels
from tidelog.server import shared_objects

steps = []
real = shared_objects.preload

def watched(paths):
    found = real(paths)
    steps.append(("preload", found, [name for name in ("numba", "numpy") if name in sys.modules]))
    return found

kernels.preload = watched
sys.addaudithook(lambda event, args: event == "import" and args[0] in ("numba", "llvmlite.binding")
    and steps.append((args[0], gc.isenabled(), round(sys.getswitchinterval(), 6))))
assert kernels._load_once()
print(steps)
print([(name, module.__file__) for name, module in sys.modules.items()
    if getattr(module, "__file__", None)])
"""


@pytest.mark.parametrize("fails", [False, True])
def test_interpreter_is_gentle_while_kernels_load(*, fails: bool) -> None:
    before = sys.getswitchinterval(), gc.isenabled()
    try:
        with kernels._quietly():
            assert not gc.isenabled()
            assert sys.getswitchinterval() == pytest.approx(kernels.SWITCH_S)
            if fails:
                raise ImportError
    except ImportError:
        assert fails
    assert (sys.getswitchinterval(), gc.isenabled()) == before


def test_libraries_are_there_before_python_asks_and_all_imports_are_gentle() -> None:
    import ast

    command = [sys.executable, "-c", WATCHED]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    steps, modules = (ast.literal_eval(line) for line in told.splitlines())
    name, loaded, imported = steps[0]
    assert (name, imported) == ("preload", [])
    assert any("llvm" in Path(path).name for path in loaded)
    # No other extension module of some size comes in with all threads stopped.
    late = [
        path
        for _, path in modules
        if path.endswith((".so", ".dylib"))
        and {"numpy", "numba", "llvmlite"} & set(Path(path).parts)
        and Path(path).stat().st_size > LARGE_BYTES
        and path not in loaded
    ]
    assert not late
    assert {step[0] for step in steps[1:]} == {"numba", "llvmlite.binding"}
    assert {step[1:] for step in steps[1:]} == {(False, kernels.SWITCH_S)}


def test_what_can_not_be_loaded_is_left_out(tmp_path: object) -> None:
    assert preload([f"{tmp_path}/libnothing.so"]) == []
    assert set(preload(libraries())) <= set(libraries())


# Another process that compiles, until it is told that it has done so.
HOLDER = """
import sys
from pathlib import Path
from tidelog.storage.kernel_cache import alone

with alone(Path(sys.argv[1]), "broker") as is_first:
    print(is_first, flush=True)
    sys.stdin.readline()
"""


def test_what_another_process_has_compiled_meanwhile_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    compiled: list[str] = []
    monkeypatch.setattr(kernels, "_is_compiled", lambda: bool(compiled))
    monkeypatch.setattr(kernels, "compile_all", lambda: compiled.append("we"))
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        waiting = threading.Thread(target=kernels.compile_once)
        waiting.start()
        waiting.join(timeout=0.2)  # long enough to compile here, were it not for the lock
        compiled.append("the other")
        other.stdin.write("done\n")
        other.stdin.close()
        waiting.join()
    assert compiled == ["the other"]
    compiled.clear()
    kernels.compile_once()  # what was kept is gone, whatever the mark says
    assert compiled == ["we"]


# Which kernels have compiled code once a broker's log has done all that it does with kernels.
USED = """
import sys
import tidelog.server.kernels as kernels
from numba.core.dispatcher import Dispatcher

kernels.compile_all()
known = kernels.used_kernels()
found = {
    id(value): value
    for name, module in list(sys.modules.items())
    if name.startswith("tidelog.")
    for value in vars(module).values()
    if isinstance(value, Dispatcher) and value.targetoptions.get("forceinline") is None
}
assert all(kernel.signatures for kernel in known)
print([value.__name__ for value in found.values() if value.signatures and value not in known])
"""


def test_all_kernels_that_a_broker_runs_are_compiled_beforehand() -> None:
    command = [sys.executable, "-c", USED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
