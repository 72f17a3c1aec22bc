"""Reduces named limits, or runs named kernels in the interpreter, until the test ends.

With a lower limit, small files can test behavior that otherwise begins at gigabytes. A test names a
constant or kernel, and a package; this module finds the package's modules that use it.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest


def set_constant(patch: pytest.MonkeyPatch, name: str, value: int, *, inside: str) -> None:
    """Change a constant in every module of `inside` that has it.

    Args:
        patch: Restores the old value at the end of the test.
        name: Name of the constant.
        value: The value during the test.
        inside: Name of a module, or of a package with all of its modules.
    """
    for module in _users(name, inside):
        assert isinstance(getattr(module, name), int)
        patch.setattr(module, name, value)


def interpret(patch: pytest.MonkeyPatch, name: str, *, inside: str) -> None:
    """Run a kernel in the interpreter, which checks bounds, wherever a package uses it."""
    from tidelog.record.kernels import plain

    for module in _users(name, inside):
        patch.setattr(module, name, plain(getattr(module, name)))


def _users(name: str, inside: str) -> list[ModuleType]:
    found = [module for module in _modules(inside) if hasattr(module, name)]
    assert found, f"{inside} has no {name}"
    return found


def _modules(name: str) -> Iterator[ModuleType]:
    top = importlib.import_module(name)
    yield top
    for found in pkgutil.walk_packages(getattr(top, "__path__", ()), f"{name}."):
        yield importlib.import_module(found.name)
