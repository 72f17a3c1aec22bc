"""Local object stores follow the rules of all stores."""

import uuid
from pathlib import Path

import obstore
import obstore.exceptions as failures
import pytest
from tests.contracts.store_rules import StoreRules
from tests.faults import DamageFileSystem, Keep, reopen

from tidelog.errors import ConfigError, InvalidRequest, StorageFailure
from tidelog.objects import ObjectStore, obstore_store, open_store
from tidelog.objects.folder_store import LOCK_NAME, PART_SUFFIX, FolderStore


class TestMemory(StoreRules):
    @pytest.fixture
    def opened(self) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4().hex}/some/prefix")

    def test_one_name_is_one_store(self, opened: ObjectStore) -> None:
        opened.put("a", b"x")
        assert open_store(opened.url).read("a") == b"x"
        assert open_store(opened.url.rpartition("/")[0]).read("prefix/a") == b"x"

    @pytest.mark.parametrize("stored", [b"mine", b"theirs", None])
    def test_a_put_without_a_response_succeeded_if_its_bytes_are_stored(
        self, opened: ObjectStore, monkeypatch: pytest.MonkeyPatch, stored: bytes | None
    ) -> None:
        """A put gets no response, and its retry fails because the object exists.

        If the object has the bytes of the put, the first attempt has stored them.
        """
        attempts: list[bytes] = []
        real = obstore.put

        def put(store: object, key: str, data: bytes, **options: object) -> object:
            if options.get("mode") != "create":
                return real(store, key, data, **options)  # type: ignore[arg-type] # passed on
            attempts.append(data)
            if len(attempts) == 1:
                raise failures.GenericError("the connection broke")
            if stored is not None:
                opened.put("m", stored)
            raise failures.AlreadyExistsError("m")

        monkeypatch.setattr(obstore_store, "_BACKOFF_S", 0)
        monkeypatch.setattr(obstore, "put", put)
        written = opened.put_if("m", b"mine", etag=None)
        assert len(attempts) == 2
        assert (written is not None) == (stored == b"mine")


class TestFolder(StoreRules):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}/store")

    def test_reading_creates_no_folder(self, opened: ObjectStore, tmp_path: Path) -> None:
        assert list(opened.list("")) == []
        assert opened.head("a") is None
        assert list(tmp_path.iterdir()) == []

    def test_files_that_serve_writing_are_no_objects(
        self, opened: ObjectStore, tmp_path: Path
    ) -> None:
        opened.put_if("a", b"x", etag=None)
        (tmp_path / "store" / f"b{PART_SUFFIX}").touch()
        assert (tmp_path / "store" / LOCK_NAME).exists()
        assert [info.key for info in opened.list_dir("")[0]] == ["a"]

    def test_files_of_unfinished_puts_are_listed_so_that_they_can_be_removed(
        self, opened: ObjectStore, tmp_path: Path
    ) -> None:
        opened.put("a/b", b"x")
        part = tmp_path / "store" / "a" / f"c{PART_SUFFIX}"
        part.write_bytes(b"an upload was interrupted here")
        assert [info.key for info in opened.list("")] == ["a/b", f"a/c{PART_SUFFIX}"]
        opened.delete(f"a/c{PART_SUFFIX}")
        assert not part.exists()

    def test_a_disk_that_fails_is_typed(self, opened: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "store").write_bytes(b"a file where a folder should be")
        with pytest.raises(StorageFailure, match="store"):
            opened.put("a/b", b"x")

    def test_puts_and_deletions_survive_a_power_loss(self) -> None:
        fs = DamageFileSystem()

        def found_later(key: str) -> bytes | None:
            later = FolderStore("file:///some/store", reopen(fs.crash(Keep.SYNCED)))
            return None if later.head(key) is None else later.read(key)

        store = FolderStore("file:///some/store", fs)
        store.put("a/folder/b", b"x")
        assert found_later("a/folder/b") == b"x"
        store.put("a/folder/b", b"y")
        assert found_later("a/folder/b") == b"y"
        store.put_if("c", b"z", etag=None)
        assert found_later("c") == b"z"
        store.delete("a/folder/b")
        assert found_later("a/folder/b") is None


class TestFsspec(StoreRules):
    swaps = False

    @pytest.fixture
    def opened(self, tmp_path: Path) -> ObjectStore:
        return open_store(f"local://{tmp_path}/store")

    def test_errors_have_the_url(self, opened: ObjectStore, tmp_path: Path) -> None:
        url = f"local://{tmp_path}/store"
        assert opened.url == url
        with pytest.raises(FileNotFoundError) as missing:
            opened.read("a/b")
        assert missing.value.filename == f"{url}/a/b"
        (tmp_path / "store" / "folder").mkdir(parents=True)
        with pytest.raises(StorageFailure, match=f"^{url}/folder: "):
            opened.read("folder")
        with pytest.raises(StorageFailure, match=f"^{url}/a: "):
            opened.put_if("a", b"x", etag=None)


def test_invalid_urls_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not the URL of a store"):
        open_store("/data/logs")
    with pytest.raises(InvalidRequest, match="must not contain credentials") as caught:
        open_store("sftp://me:hunter2@host/logs")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("s3://bucket/p", {"nonsense": "1"}, "store.nonsense"),
        ("s3://bucket/p", {"timeout_ms": "soon"}, "store.timeout_ms=soon"),
        ("s3://bucket/p", {"allow_http": "perhaps"}, "store.allow_http=perhaps"),
        ("file:///tmp/x", {"region": "eu"}, "store.region"),
        ("nowhere://x/y", {}, "nowhere"),
    ],
)
def test_invalid_options_are_refused(url: str, options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_store(url, options)


def test_an_unknown_profile_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"store\.profile=nobody: .*could not be found"):
        open_store("s3://bucket/logs", {"profile": "nobody"})
