"""Loading kernels does not stall other threads, and leaves the interpreter unchanged."""

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.worlds.needs import need
from tests.worlds.waiting import PATIENCE_S

from tidelog.server import kernels
from tidelog.server.kernels import libraries, preload
from tidelog.storage.kernel_cache import CACHE_VARIABLE

LARGE_BYTES = 1 << 20
# This program runs in another process, because this process may have loaded numba already.
WATCHED = """
import asyncio, ctypes, gc, sys, threading
from tidelog.server import kernels

if sys.argv[1:]:
    sys.modules["numba"] = None
steps, mapped, kernels_begun = [], [], []
before = gc.isenabled(), sys.getswitchinterval()

def note(event, args):
    if event == "import" and args[0] in ("numba", "llvmlite.binding") and kernels_begun:
        with open("/proc/self/maps") as maps:
            mapped.append({line.split()[-1] for line in maps if ".so" in line})
        steps.append((args[0], gc.isenabled(), round(sys.getswitchinterval(), 6)))

sys.addaudithook(note)

async def load():
    done = asyncio.Event()
    kernels_begun.append(True)
    kernels.load_beside(done.set)
    (thread,) = [each for each in threading.enumerate() if each.name == "tidelog-kernels"]
    while thread.is_alive():
        await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return done.is_set()

print((asyncio.run(load()), kernels.are_loaded()))
print((gc.isenabled(), sys.getswitchinterval()) == before)
print((steps, sorted(mapped[0]) if mapped else []))
print([(name, module.__file__) for name, module in sys.modules.items()
    if getattr(module, "__file__", None)])
"""


def watched(*arguments: str) -> list[str]:
    """Run WATCHED; return the lines that it prints.

    1. Whether loading called its callback, and whether kernels are loaded.
    2. Whether the settings of garbage collection and switch interval are unchanged.
    3. These settings at each import of numba or llvmlite, and the libraries mapped at the first
       import.
    4. Names and files of all modules that have a file.
    """
    command = [sys.executable, "-c", WATCHED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_without_numba_no_library_is_loaded_and_the_interpreter_is_unchanged() -> None:
    assert watched("none")[:2] == ["(False, False)", "True"]


def test_libraries_are_loaded_before_their_import_and_no_import_stops_all_threads() -> None:
    need(sys.platform == "linux", "/proc of Linux, for the mapped libraries")
    *said, done, came = watched()
    assert said == ["(True, True)", "True"]
    (imports, loaded), modules = ast.literal_eval(done), ast.literal_eval(came)
    assert any("llvm" in Path(path).name for path in loaded)
    # No large extension module of numpy, numba or llvmlite is imported while all threads are
    # stopped.
    late = [
        path
        for _, path in modules
        if path.endswith((".so", ".dylib"))
        and {"numpy", "numba", "llvmlite"} & set(Path(path).parts)
        and Path(path).stat().st_size > LARGE_BYTES
        and path not in loaded
    ]
    assert not late
    assert {step[0] for step in imports} == {"numba", "llvmlite.binding"}
    assert {step[1:] for step in imports} == {(False, kernels.SWITCH_S)}


# A program that ends although the loading of its libraries would take an hour.
UNFINISHED = """
import asyncio, time
from tidelog.server import kernels

kernels.preload = lambda paths: time.sleep(3600)

async def load():
    kernels.load_beside(lambda: None)

asyncio.run(load())
"""


def test_a_process_ends_while_kernels_are_loaded() -> None:
    subprocess.run([sys.executable, "-c", UNFINISHED], check=True, timeout=PATIENCE_S)


def test_libraries_that_cannot_be_loaded_are_left_out(tmp_path: object) -> None:
    assert preload([f"{tmp_path}/libnothing.so"]) == []
    assert set(preload(libraries())) <= set(libraries())


# This program holds the lock under which kernels are compiled, until it gets input.
HOLDER = """
import sys
from pathlib import Path
from tidelog.storage.kernel_cache import alone

with alone(Path(sys.argv[1]), "broker") as is_first:
    print(is_first, flush=True)
    sys.stdin.readline()
"""


def test_kernels_compiled_meanwhile_by_another_process_are_not_compiled_again(
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
        waiting.join(timeout=0.2)  # without the lock, the thread would have compiled by now
        compiled.append("the other")
        other.stdin.write("done\n")
        other.stdin.close()
        waiting.join()
    assert compiled == ["the other"]
    compiled.clear()
    kernels.compile_once()  # the mark exists, but the compiled code was removed
    assert compiled == ["we"]


# Compiles the kernels of a broker by running its log, then prints the compiled kernels that
# `used_kernels` lacks.
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
