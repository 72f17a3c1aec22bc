"""Stores over fsspec: errors are typed, and writers may create the same folder at once."""

from pathlib import Path

import pytest

from tidelog.env import os_env
from tidelog.errors import StorageFailure
from tidelog.objects.fsspec_store import FsspecStore, open_fsspec


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return open_fsspec(f"file://{tmp_path}/store", {})


def test_a_folder_that_another_writer_creates_meanwhile_is_used(
    store: FsspecStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sftp client of fsspec looks up the folder first, and creates it without `exist_ok`."""

    def makedirs(path: str, *, exist_ok: bool) -> None:
        assert exist_ok
        Path(path).mkdir(parents=True, exist_ok=True)  # the other writer
        Path(path).mkdir()

    monkeypatch.setattr(store._fs, "makedirs", makedirs)
    (tmp_path / "file").write_bytes(b"xyz")
    assert store.put("a/b", b"x").size == 1
    assert store.put_file("c/d", os_env().files, str(tmp_path / "file")).size == 3
    assert (store.read("a/b"), store.read("c/d")) == (b"x", b"xyz")


def test_folders_whose_names_end_with_a_slash_are_listed(
    store: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems of fsspec, such as that of HTTP, return such names."""
    entries = [{"name": f"store/x/{name}/", "type": "directory"} for name in ("b", "a")]
    monkeypatch.setattr(store._fs, "ls", lambda path, detail: entries)
    assert store.list_dir("x") == ([], ["a", "b"])


def test_a_file_in_place_of_a_folder_is_a_typed_error(store: FsspecStore, tmp_path: Path) -> None:
    store.put("a", b"x")
    (tmp_path / "file").write_bytes(b"xyz")
    for key in ("a/b", "a/b/c"):
        with pytest.raises(StorageFailure, match=f"store/{key}: put failed"):
            store.put(key, b"x")
        with pytest.raises(StorageFailure, match=f"store/{key}: put failed"):
            store.put_file(key, os_env().files, str(tmp_path / "file"))
    assert store.read("a") == b"x"


def test_an_object_in_place_of_the_store_is_a_typed_error(
    store: FsspecStore, tmp_path: Path
) -> None:
    (tmp_path / "store").write_bytes(b"x")
    with pytest.raises(StorageFailure, match="store/a: put failed"):
        store.put("a", b"x")


def test_an_object_that_is_missing_after_its_put_is_a_typed_error(
    store: FsspecStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"xyz")
    monkeypatch.setattr(store, "head", lambda key: None)
    with pytest.raises(StorageFailure, match=r"store/a: put failed: .* missing after"):
        store.put("a", b"x")
    with pytest.raises(StorageFailure, match=r"store/b: put failed: .* missing after"):
        store.put_file("b", os_env().files, str(tmp_path / "file"))
