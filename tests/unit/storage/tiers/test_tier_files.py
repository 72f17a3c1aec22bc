"""Cached blocks of a tier are bounded in size and verified."""

from contextlib import nullcontext
from random import Random

import pytest
from tests.faults import DamageFileSystem
from tests.unit.storage.tiers.fake_store import URL, FakeStore
from tests.unit.storage.tiers.tiered import tier_env
from tests.worlds.constants import set_constant

from tidelog.env import Env, ManualClock, OsFileSystem
from tidelog.errors import ConfigError, CorruptFile, InvalidRequest
from tidelog.objects.blocks import (
    BlockCache,
    FolderBlocks,
    MemoryBlocks,
    decode_block,
    encode_block,
)
from tidelog.record.coding import crc32c
from tidelog.storage.clocks.zone_map import FileSum
from tidelog.storage.tier.tier_files import (
    BLOCK_BYTES,
    FOLDER_BYTES,
    TierFiles,
    TierOptions,
    VerifiedFile,
    check_tier_url,
    is_tier_path,
    object_url,
    parse_tier_path,
    tier_files_of,
    tier_path,
)

KEY = "t-1/0/0-a/0.log"
FOLDER = "/cache"


def test_the_rest_of_an_object_is_verified_although_it_has_no_whole_batch() -> None:
    fs, content = DamageFileSystem(), b"a batch, and an incomplete one"
    file = fs.open("/object", create=True)
    file.pwritev([content], 0)
    for data, is_sound in ((content, True), (b"A" + content[1:], False)):
        checked = VerifiedFile(file, "/object", FileSum(len(data), crc32c(data)))
        assert checked.pread(7, 0) == content[:7]
        with nullcontext() if is_sound else pytest.raises(CorruptFile, match="checksum"):
            checked.read_rest(10)


def test_memory_keeps_recently_used_blocks() -> None:
    blocks = MemoryBlocks(100)
    for name in "abcd":
        blocks.put(name, name.encode() * 30)
        assert blocks.get("a") == b"a" * 30
    assert blocks.size_bytes == 90
    assert [name for name in "abcd" if blocks.get(name)] == ["a", "c", "d"]
    blocks.put("large", b"x" * 101)
    assert blocks.get("large") is None
    blocks.put("a", b"y")
    assert blocks.size_bytes == 61
    blocks.drop("a")
    blocks.drop("a")
    assert blocks.size_bytes == 60


def test_a_folder_stays_below_its_limit_and_outlives_a_process() -> None:
    fs = DamageFileSystem()
    blocks = FolderBlocks(fs, FOLDER, 1000)
    for number in range(20):
        blocks.put(f"{number}", b"%02d" % number * 50)
        assert blocks.get("0") is not None
    sizes = [fs.stat(f"{FOLDER}/{entry.name}").size for entry in fs.list_dir(FOLDER)]
    assert sum(sizes) <= 1000
    again = FolderBlocks(fs, FOLDER, 1000)
    assert again.get("0") == b"00" * 50
    assert again.get("19") == b"19" * 50
    assert again.get("5") is None
    again.put("new", b"n" * 700)
    sizes = [fs.stat(f"{FOLDER}/{entry.name}").size for entry in fs.list_dir(FOLDER)]
    assert sum(sizes) <= 1000


def test_recently_used_blocks_of_a_folder_are_kept_and_unused_ones_go_by_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_constant(monkeypatch, "_LIST_AGAIN", 4, inside="tidelog.objects.blocks")
    clock = ManualClock()
    fs = DamageFileSystem(clock=clock)
    size = len(encode_block(b"00", "00"))
    blocks = FolderBlocks(fs, FOLDER, 8 * size)
    for number in range(40):
        clock.advance(1)
        blocks.put(f"{number:02}", b"%02d" % number)
        assert blocks.get("00") == b"00", number
    cached = ["00", *(f"{number}" for number in range(33, 40))]
    assert [f"{number:02}" for number in range(40) if blocks.get(f"{number:02}")] == cached
    for number in range(3):
        FolderBlocks(fs, FOLDER, 8 * size).put(f"n{number}", b"nn")
        clock.advance(1)
    assert [name for name in cached if blocks.get(name)] == cached[3:]


def test_processes_that_share_a_folder_also_count_the_blocks_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two listings of the folder, a process does not see the others' new blocks."""
    set_constant(monkeypatch, "_LIST_AGAIN", 4, inside="tidelog.objects.blocks")
    fs, data = DamageFileSystem(), b"x" * 90
    size = len(encode_block(data, "0-00"))
    processes = [FolderBlocks(fs, FOLDER, 20 * size) for _ in range(2)]
    for number in range(60):
        for process, blocks in enumerate(processes):
            blocks.put(f"{process}-{number:02}", data)
            assert len(fs.list_dir(FOLDER)) <= 20 + 4


def test_temporary_files_of_other_processes_are_removed() -> None:
    fs = DamageFileSystem()
    fs.make_dirs(FOLDER)
    fs.open(f"{FOLDER}/left.block-1-1.tmp", create=True).close()
    blocks = FolderBlocks(fs, FOLDER, 1000)
    blocks.put("a", b"data")
    (entry,) = fs.list_dir(FOLDER)
    assert entry.name.endswith(".block")
    assert blocks.get("a") == b"data"


def test_every_flipped_bit_of_a_block_is_found() -> None:
    content = encode_block(b"some data", "a name")
    assert decode_block(content, "a name") == b"some data"
    assert decode_block(content, "another") is None
    for at in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        assert decode_block(bytes(damaged), "a name") is None
    for size in range(len(content)):
        assert decode_block(content[:size], "a name") is None


def test_a_damaged_file_is_removed_and_a_full_disk_is_no_failure() -> None:
    fs = DamageFileSystem()
    blocks = FolderBlocks(fs, FOLDER, 10_000)
    blocks.put("a", b"data")
    (name,) = (entry.name for entry in fs.list_dir(FOLDER))
    file = fs.open(f"{FOLDER}/{name}", write=True)
    file.pwrite(b"!", 20)
    file.close()
    assert blocks.get("a") is None
    assert not fs.list_dir(FOLDER)
    full = DamageFileSystem(limit_bytes=50)
    cache = BlockCache(MemoryBlocks(0), FolderBlocks(full, FOLDER, 10_000))
    cache.put("a", b"x" * 1000)
    assert cache.get("a") is None


def _files(store: FakeStore, fs: DamageFileSystem, folder: str | None) -> TierFiles:
    return TierFiles(fs, TierOptions(open_store=store.open, cache_dir=folder, memory_bytes=0))


@pytest.mark.parametrize("folder", [None, FOLDER])
def test_ranges_are_those_of_the_object(folder: str | None) -> None:
    data = Random(1).randbytes(3 * BLOCK_BYTES + 17)
    store, fs = FakeStore(objects={KEY: (data, "e", 0)}), DamageFileSystem()
    path = tier_path(URL, KEY, FileSum(len(data), crc32c(data)))
    files = _files(store, fs, folder)
    file = files.open(path)
    assert file.size() == len(data)
    random = Random(2)
    for _ in range(60):
        start, size = random.randrange(len(data) + 10), random.randrange(1, 2 * BLOCK_BYTES)
        assert file.pread(size, start) == data[start : start + size]
    assert bytes(files.map(path)) == data
    if folder is not None:
        before = store.calls
        assert bytes(_files(store, fs, folder).map(path)) == data
        assert store.calls == before, "all of it was in the folder"


def test_a_whole_object_is_checked_and_a_stale_block_read_again() -> None:
    data = Random(1).randbytes(2 * BLOCK_BYTES)
    store, fs = FakeStore(objects={KEY: (data, "e", 0)}), DamageFileSystem()
    path = tier_path(URL, KEY, FileSum(len(data), crc32c(data)))
    files = _files(store, fs, FOLDER)
    blocks = FolderBlocks(fs, FOLDER, FOLDER_BYTES)
    blocks.put(f"{path}@1", b"?" * BLOCK_BYTES)  # a valid block, but the object has other content
    assert bytes(files.map(path)) == data
    store.objects[KEY] = (data[:-1] + b"?", "e", 0)
    fresh = DamageFileSystem()
    with pytest.raises(CorruptFile, match="--verify"):
        _files(store, fresh, None).map(path)
    store.objects[KEY] = (data[:-9], "e", 0)
    with pytest.raises(CorruptFile, match="the object has only"):
        _files(store, fresh, None).map(path)
    del store.objects[KEY]
    with pytest.raises(FileNotFoundError):
        _files(store, fresh, None).map(path)


def test_objects_are_read_only_and_paths_have_their_size_and_checksum() -> None:
    files = _files(FakeStore(), DamageFileSystem(), None)
    path = tier_path(URL, "t-1/0/a/b.log", FileSum(7, 0xBADCAFE))
    assert is_tier_path(path)
    parsed = parse_tier_path(path)
    assert parsed is not None
    assert (parsed.url, parsed.key, parsed.sum) == (URL, "t-1/0/a/b.log", FileSum(7, 0xBADCAFE))
    assert files.stat(path).size == 7
    assert files.exists(path)
    assert files.is_remote(path)
    missing = tier_path(URL, "t-1/0/a/b.txnindex", None)
    assert is_tier_path(missing)
    assert not files.exists(missing)
    for action in (files.open, files.stat, files.map):
        with pytest.raises(FileNotFoundError):
            action(missing)
    with pytest.raises(PermissionError):
        files.open(path, write=True)
    file = files.open(path)
    with pytest.raises(PermissionError):
        file.pwrite(b"x", 0)
    assert object_url(path) == f"{URL}/t-1/0/a/b.log"
    for local in ("/data/t-1/0/a/b#1-00000000", "s3://b/logs#1/t-0/0.log", f"{URL}/t-1/0/a/b.log"):
        assert not is_tier_path(local)
        assert object_url(local) == local


def test_options_are_read_and_shared() -> None:
    given = {"tier_cache_dir": FOLDER, "tier_cache_bytes": "1000", "region": "r"}
    options = TierOptions.of(given)
    assert (options.cache_dir, options.cache_bytes, dict(options.store)) == (
        FOLDER,
        1000,
        {"region": "r"},
    )
    assert "region" not in repr(options)
    for wrong in ({"tier_cache_bytes": "1k"}, {"tier_cache": "x"}):
        with pytest.raises(ConfigError, match="tier_cache"):
            TierOptions.of(wrong)
    env = Env(store_options=given)
    assert tier_files_of(env) is tier_files_of(Env(store_options=given))
    assert tier_files_of(env) is not tier_files_of(Env())
    own = tier_env(env, TierOptions())
    assert tier_files_of(own) is own.files
    for url in ("/a/path", "s3://b/p#x"):
        with pytest.raises(InvalidRequest):
            check_tier_url(url)
    assert check_tier_url("s3://b/p/") == "s3://b/p"


def test_other_file_systems_have_their_own_tier_files() -> None:
    class OtherFiles(OsFileSystem):
        pass

    env = Env(files=OtherFiles(), store_options={"tier_cache_bytes": "12345"})
    machine = Env(store_options={"tier_cache_bytes": "12345"})
    assert tier_files_of(env).below is env.files
    assert type(tier_files_of(machine).below) is OsFileSystem
