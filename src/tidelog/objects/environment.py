"""The surroundings in which a path is read: those of the machine, or with a store's files."""

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from tidelog.env import Env, is_remote, os_env
from tidelog.objects.object_files import ObjectFiles
from tidelog.objects.opening import open_store
from tidelog.objects.store import ObjectStore
from tidelog.objects.urls import is_url

TIER_PREFIX: Final = "tier_"
_STORES_MAX: Final = 16
_OWN_VARIABLES: Final = ("AWS_", "GOOGLE_", "AZURE_")

_stores: Final[OrderedDict[tuple[object, ...], ObjectStore]] = OrderedDict()
_lock: Final = threading.Lock()


def shared_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """As `open_store`; the same settings share a store, and so its connections."""
    given = tuple(sorted((options or {}).items()))
    variables = tuple(
        sorted(item for item in os.environ.items() if item[0].startswith(_OWN_VARIABLES))
    )
    name = (os.getpid(), url.rstrip("/"), given, variables)
    with _lock:
        found = _stores.get(name)
    if found is None:
        found = open_store(url, options)
        with _lock:
            _stores[name] = found
            while len(_stores) > _STORES_MAX:
                _stores.popitem(last=False)
    return found


def env_for(path: str, env: Env | None = None, options: Mapping[str, str] | None = None) -> Env:
    """Surroundings that can read the path.

    Args:
        path: A path of the machine, or the URL of a directory in a store.
        env: What to take all else from; the machine's where None.
        options: Settings of the store; see `open_store`.

    Returns:
        `env` itself where it can read the path; else the same with files that can, and with the
        options, which hold for tiers of the directory too.

    Raises:
        InvalidRequest, ConfigError, MissingDependency: As `open_store`.
    """
    found = env or os_env()
    if options:
        found = dataclasses.replace(found, store_options=dict(options))
        # Those of the cache of tiers are no store's; see docs/tiers.md.
        options = {name: text for name, text in options.items() if not name.startswith(TIER_PREFIX)}
    if not is_url(path) or is_remote(found.files, path.rstrip("/")):
        return found
    files = ObjectFiles(shared_store(path, options), local=found.files)
    return dataclasses.replace(found, files=files)
