"""Contract of every `ObjectStore`: the test class of each store inherits from `StoreRules`.

The fixture `opened` is a store below an empty prefix. `swaps` states whether the store can compare
and swap.
"""

from pathlib import Path

import pytest

from tidelog.env import OsFileSystem
from tidelog.errors import StorageFailure
from tidelog.objects import ObjectStore
from tidelog.objects.store import PART_BYTES


class StoreRules:
    swaps = True

    def test_a_missing_object(self, opened: ObjectStore) -> None:
        assert opened.head("a/b") is None
        assert list(opened.list("")) == []
        assert opened.list_dir("a") == ([], [])
        opened.delete("a/b")
        for read in (opened.read, opened.read_with_info):
            with pytest.raises(FileNotFoundError, match="a/b"):
                read("a/b")
        with pytest.raises(FileNotFoundError, match="a/b"):
            opened.read_range("a/b", 0, 10)

    def test_put_and_read(self, opened: ObjectStore) -> None:
        put = opened.put("a/b", b"0123456789")
        assert (put.key, put.size) == ("a/b", 10)
        head = opened.head("a/b")
        assert head is not None
        assert (head.key, head.size, head.etag) == ("a/b", 10, put.etag)
        assert head.modified_ms > 0
        assert opened.read("a/b") == b"0123456789"
        assert opened.read_with_info("a/b") == (b"0123456789", head)

    def test_ranges(self, opened: ObjectStore) -> None:
        opened.put("a", b"0123456789")
        assert opened.read("a", 3, 4) == b"3456"
        assert opened.read("a", 3) == b"3456789"
        assert opened.read("a", 8, 100) == b"89"
        assert opened.read("a", 10, 5) == b""
        assert opened.read("a", 10) == b""
        assert opened.read("a", 99, 1) == b""
        assert opened.read("a", 0, 0) == b""
        data, info = opened.read_range("a", 8, 100)
        assert (bytes(data), info.size) == (b"89", 10)

    def test_an_empty_object(self, opened: ObjectStore) -> None:
        opened.put("empty", b"")
        assert opened.read("empty") == b""
        assert opened.read("empty", 0, 10) == b""
        head = opened.head("empty")
        assert head is not None
        assert head.size == 0

    def test_a_range_of_a_replaced_object_is_an_error(self, opened: ObjectStore) -> None:
        opened.put("a", b"old content")
        _, info = opened.read_range("a", 0, 4)
        assert bytes(opened.read_range("a", 4, 4, etag=info.etag)[0]) == b"cont"
        opened.put("a", b"new, other content")
        with pytest.raises(FileNotFoundError, match="Replaced"):
            opened.read_range("a", 4, 4, etag=info.etag)

    def test_listing(self, opened: ObjectStore) -> None:
        for key in ("t-0/00.log", "t-0/00.index", "t-0/sub/x", "t-01/00.log", "top"):
            opened.put(key, key.encode())
        assert sorted(info.key for info in opened.list("t-0")) == [
            "t-0/00.index",
            "t-0/00.log",
            "t-0/sub/x",
        ]
        assert len(list(opened.list(""))) == 5
        objects, folders = opened.list_dir("t-0")
        assert [(info.key, info.size) for info in objects] == [
            ("t-0/00.index", 12),
            ("t-0/00.log", 10),
        ]
        assert folders == ["sub"]
        assert opened.list_dir("")[1] == ["t-0", "t-01"]
        assert objects[0] == opened.head("t-0/00.index")

    def test_delete(self, opened: ObjectStore) -> None:
        opened.put("a", b"x")
        opened.delete("a")
        assert opened.head("a") is None

    def test_a_large_file_is_uploaded_in_parts(self, opened: ObjectStore, tmp_path: Path) -> None:
        data = bytes(range(256)) * (PART_BYTES // 256) * 2 + b"end"
        path = tmp_path / "big"
        path.write_bytes(data)
        put = opened.put_file("dir/big", OsFileSystem(), str(path))
        head = opened.head("dir/big")
        assert head is not None
        assert (put.size, head.size, head.etag) == (len(data), len(data), put.etag)
        assert opened.read("dir/big") == data
        with pytest.raises(FileNotFoundError):
            opened.put_file("dir/none", OsFileSystem(), str(tmp_path / "none"))
        assert opened.head("dir/none") is None

    def test_swap(self, opened: ObjectStore) -> None:
        if not self.swaps:
            with pytest.raises(StorageFailure, match="no conditional put"):
                opened.put_if("m", b"1", etag=None)
            return
        first = opened.put_if("m", b"1", etag=None)
        assert first is not None
        assert opened.put_if("m", b"1", etag=None) is None
        second = opened.put_if("m", b"22", etag=first.etag)
        assert second is not None
        assert opened.put_if("m", b"333", etag=first.etag) is None
        assert opened.put_if("gone", b"333", etag=first.etag) is None
        assert opened.read("m") == b"22"
        assert opened.head("gone") is None
        read, info = opened.read_with_info("m")
        assert (read, info.etag) == (b"22", second.etag)
        assert opened.put_if("m", b"333", etag=info.etag) is not None
