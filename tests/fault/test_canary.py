"""The harness finds faults: a tiny writer passes, and its faulty variants are caught.

The writer keeps numbered lines in one file. It replaces its checkpoint by writing a temporary file
and renaming it. It promises that acknowledged lines and checkpoints survive.
"""

from dataclasses import dataclass

import pytest
from tests.fault.harness import CrashFound, Story, Survey, is_prefix_of_any, survey
from tests.faults import CrashState, DamageFileSystem, Keep, reopen

from tidelog.env import File, FileSystem
from tidelog.record.coding import crc32c

SEEDS = range(3000)
LINE_SIZE = 12


@dataclass(frozen=True, slots=True)
class Kept:
    """The writer's promise: the count of lines and the checkpoint that survive a crash."""

    lines: int = 0
    checkpoint: int = 0


def line(number: int) -> bytes:
    body = b"%08d" % number
    return body + crc32c(body).to_bytes(4, "big")


class TinyWriter:
    """The correct writer."""

    def __init__(self, files: FileSystem) -> None:
        self.files = files
        self.file = files.open("/d/lines", create=True)
        self.sync_dir()
        self.count = 0

    def append(self) -> None:
        self.file.pwrite(line(self.count), self.count * LINE_SIZE)
        self.sync(self.file)
        self.count += 1

    def checkpoint(self) -> None:
        file = self.files.open("/d/checkpoint.tmp", create=True)
        file.truncate(0)
        file.pwrite(line(self.count), 0)
        self.sync(file)
        file.close()
        self.replace()
        self.sync_dir()

    def sync(self, file: File) -> None:
        file.sync()

    def sync_dir(self) -> None:
        self.files.sync_dir("/d")

    def replace(self) -> None:
        self.files.rename("/d/checkpoint.tmp", "/d/checkpoint")


class NeverSyncs(TinyWriter):
    def sync(self, file: File) -> None:
        pass


class NeverSyncsNames(TinyWriter):
    def sync_dir(self) -> None:
        pass


class RewritesInPlace(TinyWriter):
    """Truncates the old checkpoint before the new one is durable."""

    def checkpoint(self) -> None:
        file = self.files.open("/d/checkpoint", create=True)
        file.truncate(0)
        file.pwrite(line(self.count), 0)
        file.sync()
        file.close()
        self.sync_dir()


class AcknowledgesTooEarly(TinyWriter):
    """Syncs before it writes the line that it acknowledges, so only earlier lines are durable."""

    def append(self) -> None:
        self.file.sync()
        self.file.pwrite(line(self.count), self.count * LINE_SIZE)
        self.count += 1


def run(writer_type: type[TinyWriter]) -> tuple[DamageFileSystem, Story[Kept]]:
    files = DamageFileSystem()
    files.make_dirs("/d")
    files.settle()
    writer = writer_type(files)
    story = Story(files, Kept())
    for step in range(1, 9):
        writer.append()
        story.tell(Kept(step, story.latest.checkpoint))
        if step % 3 == 0:
            writer.checkpoint()
            story.tell(Kept(step, step))
    return files, story


def read_lines(files: FileSystem, path: str) -> list[bytes]:
    """Return the lines before the first invalid line; an empty list if there is no file."""
    if not files.exists(path):
        return []
    data = files.open(path).pread(1 << 20, 0)
    found = []
    for at in range(0, len(data), LINE_SIZE):
        piece = data[at : at + LINE_SIZE]
        if len(piece) < LINE_SIZE or crc32c(piece[:8]) != int.from_bytes(piece[8:], "big"):
            break
        found.append(piece)
    return found


def judge(state: CrashState, before: Kept, after: Kept) -> None:
    files = reopen(state)
    lines = read_lines(files, "/d/lines")
    assert len(lines) >= before.lines, f"{before.lines} lines acknowledged, {len(lines)} there"
    assert is_prefix_of_any(lines, [[line(number) for number in range(after.lines)]])
    if before.checkpoint:
        assert read_lines(files, "/d/checkpoint") in (
            [line(before.checkpoint)],
            [line(after.checkpoint)],
        ), "a checkpoint that nobody wrote"


def look(writer_type: type[TinyWriter]) -> Survey:
    files, story = run(writer_type)
    survey(files, story, files.prefixes(Keep.EVERYTHING), judge)
    survey(files, story, files.prefixes(Keep.SYNCED), judge)
    return survey(files, story, files.crash_states(SEEDS), judge)


def test_right_writer_survives_every_crash() -> None:
    result = look(TinyWriter)
    assert result.drawn == len(SEEDS)
    assert result.judged > 50  # different states were judged, so the test could find faults


@pytest.mark.parametrize(
    ("wrong", "symptom"),
    [
        (NeverSyncs, "lines acknowledged"),
        (NeverSyncsNames, "lines acknowledged"),
        (RewritesInPlace, "a checkpoint that nobody wrote"),
        (AcknowledgesTooEarly, "lines acknowledged"),
    ],
)
def test_wrong_writer_is_caught(wrong: type[TinyWriter], symptom: str) -> None:
    with pytest.raises(CrashFound, match=symptom):
        look(wrong)


def test_a_failure_has_the_seeds_to_reproduce_it() -> None:
    files, story = run(NeverSyncs)
    with pytest.raises(CrashFound) as caught:
        survey(files, story, files.crash_states(SEEDS), judge)
    text = str(caught.value)
    assert "crash seed" in text
    seed = int(text.split("crash seed ")[1].split(",")[0])
    files, story = run(NeverSyncs)
    with pytest.raises(CrashFound) as again:
        survey(files, story, files.crash_states([seed]), judge)
    assert str(again.value) == text


def test_calls_of_another_thread_during_settle_stay_in_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a thread creates a file while `settle` runs, the journal keeps the creation.

    Later syncs of this file need this entry.
    """
    files = DamageFileSystem()
    files.make_dirs("/d")
    crash = DamageFileSystem.crash
    made: list[File] = []

    def crash_and_create(
        disk: DamageFileSystem, keep: Keep, prefix: int | None = None
    ) -> CrashState:
        state = crash(disk, keep, prefix)
        made.append(disk.open("/d/late", write=True, create=True))
        return state

    monkeypatch.setattr(DamageFileSystem, "crash", crash_and_create)
    files.settle()
    monkeypatch.undo()
    made[0].pwrite(b"x", 0)
    made[0].sync()
    (*_, last) = files.prefixes(Keep.EVERYTHING)
    assert reopen(last).open("/d/late").pread(1, 0) == b"x"
