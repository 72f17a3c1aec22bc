"""A bounded cache of decoded small files uses an entry while its file is unchanged."""

from tidelog.env import FileStat
from tidelog.storage.open_files import DecodedFiles


def stat(size: int, mtime_ms: int = 1, inode: int = 1) -> FileStat:
    return FileStat(size=size, mtime_ms=mtime_ms, is_dir=False, identity=(1, inode))


def test_another_file_of_the_same_name_is_decoded_again() -> None:
    known = DecodedFiles()
    known.keep("a", stat(1), "one", 1)
    assert known.find("a", stat(1)) == "one"
    others = (stat(2), stat(1, mtime_ms=2), stat(1, inode=2))
    assert [known.find("a", other) for other in others] == [None] * 3
    known.keep("a", stat(2), "two", 1)
    assert (known.find("a", stat(2)), known.find("a", stat(1))) == ("two", None)
    known.clear()
    assert known.find("a", stat(2)) is None


def test_the_least_recently_used_entry_is_dropped_first() -> None:
    known = DecodedFiles(weight_max=10)
    for name in "abc":
        known.keep(name, stat(1), name, 3)
    assert known.find("a", stat(1)) == "a"
    known.keep("d", stat(1), "d", 4)
    assert [known.find(name, stat(1)) for name in "abcd"] == ["a", None, "c", "d"]
    known.keep("e", stat(1), "e", 11)
    assert [known.find(name, stat(1)) for name in "abcde"] == [None] * 5
    known.keep("a", stat(1), "a", 10)
    assert known.find("a", stat(1)) == "a"
