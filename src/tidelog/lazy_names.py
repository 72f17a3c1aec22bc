"""Public names of a package that are imported at their first use.

    __getattr__ = lazy_names(__name__, {"schema": "tidelog.scan.rows"}, "pyarrow")

So `import tidelog.scan` imports no module that needs an optional package.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from tidelog.errors import MissingDependency


def lazy_names(package: str, homes: Mapping[str, str], needs: str) -> Callable[[str], object]:
    """Return a package's `__getattr__`, which imports public names at their first use.

    The returned function raises AttributeError for any other name, and MissingDependency if an
    optional package is not installed.

    Args:
        package: Full name of the package.
        homes: By public name: the full name of the module that defines it.
        needs: Optional packages that the modules need, and how to install them.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(homes[name])
        except ImportError as error:
            raise MissingDependency(f"{package}.{name} needs {needs} ({error})") from error
        value: object = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
