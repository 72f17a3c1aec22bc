"""Scenes: commands on a fresh copy of the directory of `logs`, recorded as transcripts.

Each file of `scenes/` contains the scenes of one page. A scene begins with `== NAME`; each of its
lines is

    tidelog ARGS          a command; the lines `< TEXT` after it are its stdin
    @NAME ARGS            a directive: `World` has a method for each
    # TEXT                a comment, which is not part of the transcript

In a transcript, each line begins with a mark: `$` for a command, `@` for a directive, `|` for
stdout, `!` for stderr, `=` for the exit code. `BROKER` in a command is replaced by the address of
the broker that `@broker` has started.
"""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.corpus import still
from tests.corpus.book import Entry
from tests.corpus.shell import command_line, marked, run
from tests.corpus.world import World

SCENES: Final = Path(__file__).with_name("scenes")


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene of a page: its name, and its lines with their numbers in the file."""

    name: str
    lines: list[str] = field(default_factory=list)


def scenes(page: str) -> Iterator[Scene]:
    """Yield the scenes of a page, in the order in its file."""
    scene = None
    for line in (SCENES / f"{page}.txt").read_text().splitlines():
        if line.startswith("== "):
            if scene:
                yield scene
            scene = Scene(line.removeprefix("== "))
        elif line.strip() and not line.startswith("#"):
            assert scene, f"{page}: a line before the first scene"
            scene.lines.append(line)
    if scene:
        yield scene


def commands_of(scene: Scene) -> Iterator[list[str]]:
    """Yield the arguments of each command of a scene."""
    for line in scene.lines:
        if line.startswith("tidelog"):
            yield shlex.split(line)[1:]
        elif line.startswith("@serve "):
            yield shlex.split(line[1:])
        elif line.startswith("@start "):
            yield shlex.split(line)[3:]


def play_page(part: str, page: str, folder: "Folder") -> Iterator[Entry]:
    """Yield an entry for each scene of a page; the folder is restored before each scene."""
    for scene in scenes(page):
        folder.restore()
        os.chdir(folder.path)
        still.set_time(still.START_MS)
        still.draw_for(f"{page}/{scene.name}")
        yield Entry(f"{part}/{page}/{scene.name}", "\n".join(_play(scene)))


class Folder:
    """A folder that contains only a fresh copy of a directory whenever a scene begins.

    A file is copied again only if a scene has changed the file's size or times.
    """

    def __init__(self, path: Path, source: Path) -> None:
        self.path = path
        self._source = source
        self._copy = path / source.name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, self._copy)
        self._stamps = self._look()

    def restore(self) -> None:
        """Undo all changes."""
        found = self._look()
        for name in found.keys() - self._stamps.keys():
            (self.path / name).unlink()
        for name in [name for name, stamp in self._stamps.items() if found.get(name) != stamp]:
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._source / target.relative_to(self._copy), target)
            self._stamps[name] = _stamp(target)
        for root, folders, _files in os.walk(self.path, topdown=False):
            for folder in folders:
                top, *below = Path(root, folder).relative_to(self.path).parts
                if top != self._source.name or not self._source.joinpath(*below).is_dir():
                    Path(root, folder).rmdir()

    def _look(self) -> dict[str, tuple[int, int, int]]:
        files = (path for path in self.path.rglob("*") if not path.is_dir() or path.is_symlink())
        return {f"{path.relative_to(self.path)}": _stamp(path) for path in files}


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def _play(scene: Scene) -> Iterator[str]:
    with ExitStack() as ends:
        world = World(ends)
        lines = list(scene.lines)
        while lines:
            line = lines.pop(0)
            stdin = []
            while lines and lines[0][:1] == "<":
                stdin.append(lines.pop(0)[2:])
            if line.startswith("@"):
                yield line
                yield from marked(" ", world.does(line[1:]))
                continue
            arguments = shlex.split(line)
            assert arguments[0] == "tidelog", line
            yield command_line(arguments[1:])
            yield from marked("<", stdin)
            text = "".join(f"{one}\n" for one in stdin).encode()
            ran = run(*map(world.filled, arguments[1:]), stdin=text, variables=world.variables)
            yield from ran.lines()
