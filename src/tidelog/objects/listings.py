"""What folders of a store hold, as last asked: one listing stands for many questions.

Bounded by the number of objects that are remembered; the listing asked last is always kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.objects.store import ObjectInfo, ObjectStore

OBJECTS_MAX: Final = 500_000


@dataclass(frozen=True, slots=True)
class Listing:
    """One folder: its objects by name (not by key), and the names of its folders."""

    objects: Mapping[str, ObjectInfo]
    folders: frozenset[str]

    def __len__(self) -> int:
        return len(self.objects) + len(self.folders)


class Listings:
    """Listings of one store, by folder. Safe for several threads."""

    def __init__(self, store: ObjectStore, *, objects_max: int = OBJECTS_MAX) -> None:
        self._store = store
        self._objects_max = objects_max
        self._found: OrderedDict[str, Listing] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, folder: str) -> Listing | None:
        """The listing of a folder where it was asked for before."""
        with self._lock:
            return self._found.get(folder)

    def get(self, folder: str) -> Listing:
        """The listing of a folder, asked for at most once; empty where it does not exist."""
        found = self.known(folder)
        if found is None:
            objects, folders = self._store.list_dir(folder)
            by_name = {info.key.rpartition("/")[2]: info for info in objects}
            found = Listing(by_name, frozenset(folders))
            with self._lock:
                self._found[folder] = found
                while len(self._found) > 1 and self._held() > self._objects_max:
                    self._found.popitem(last=False)
        return found

    def _held(self) -> int:
        return sum(map(len, self._found.values()))

    def forget(self, folder: str) -> None:
        """Ask anew for the folder and for what is below it."""
        with self._lock:
            for name in list(self._found):
                if not folder or name == folder or name.startswith(f"{folder}/"):
                    del self._found[name]
