"""tidelog's object store with a real S3-compatible server, which runs in a separate process."""

import re
from pathlib import Path

import pytest
from tests.contracts.store_rules import StoreRules
from tests.worlds.command_line import Cli
from tests.worlds.directories.copies import copy_into
from tests.worlds.directories.random_logs import SPAN_MS, T0, TOPIC, make_log_dir
from tests.worlds.s3_server import S3Server, s3_server

import tidelog
from tidelog.cli.surroundings import ExitCode
from tidelog.errors import ReadOnly, StorageFailure
from tidelog.objects import ObjectStore, open_store
from tidelog.scan import RequestedRange, plan, to_table

__all__ = ["s3_server"]


@pytest.fixture
def opened(s3_server: S3Server) -> ObjectStore:
    return open_store(f"s3://{s3_server.bucket()}/some/prefix", s3_server.options())


class TestS3(StoreRules):
    """Runs the tests that every store must pass."""


def test_a_missing_bucket_names_the_next_step(s3_server: S3Server) -> None:
    store = open_store("s3://there-is-none/p", s3_server.options())
    for action in (lambda: list(store.list("")), lambda: store.put("a", b"x")):
        with pytest.raises(StorageFailure, match=r"s3://there-is-none/p.*bucket's name"):
            action()


def test_an_unreachable_endpoint_is_an_error_with_advice(s3_server: S3Server) -> None:
    options = s3_server.options() | {"endpoint": "http://127.0.0.1:9", "retries": "1"}
    store = open_store("s3://bucket/p", options)
    with pytest.raises(StorageFailure, match=r"s3://bucket/p/a: read failed.*AWS_ENDPOINT_URL"):
        store.read("a")
    with pytest.raises(StorageFailure, match="AWS_ENDPOINT_URL"):
        store.put_if("a", b"x", etag=None)


@pytest.fixture(scope="module")
def copied(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the URL of a copy in a bucket, and the path of the original directory."""
    directory = tmp_path_factory.mktemp("logs")
    make_log_dir(str(directory), 4)
    store = open_store(f"s3://{s3_server.bucket()}/some/logs", s3_server.options())
    copy_into(store, directory)
    return store.url, directory


def without_sizes(out: str) -> str:
    """Return a command's output without the numbers of bytes read."""
    return re.sub(r'"(log|sidecar)_bytes_read": [0-9]+', "", out)


class TestDirectory:
    """A directory of topics that was copied into a bucket."""

    @pytest.fixture(autouse=True)
    def _environment(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in s3_server.environment().items():
            monkeypatch.setenv(name, value)

    def test_scan(self, copied: tuple[str, Path]) -> None:
        url, directory = copied
        for wanted in (
            RequestedRange(),
            RequestedRange(start_ms=T0 + SPAN_MS // 3, end_ms=T0 + SPAN_MS // 2),
        ):
            assert to_table(plan(url, requested_range=wanted)) == to_table(
                plan(str(directory), requested_range=wanted)
            )

    def test_library(self, copied: tuple[str, Path]) -> None:
        url, directory = copied
        with tidelog.open(url) as there, tidelog.open(str(directory)) as here:
            assert there.topics() == here.topics()
            assert list(there.read(TOPIC)) == list(here.read(TOPIC))
            assert there.offsets_at(TOPIC, T0 + 5) == here.offsets_at(TOPIC, T0 + 5)
        with pytest.raises(ReadOnly):
            tidelog.open(url, writable=True)

    @pytest.mark.parametrize(
        "command",
        [
            ("topics", "-o", "json"),
            ("read", TOPIC, "--key-as", "bytes", "--value-as", "bytes", "-o", "json"),
            ("offsets", TOPIC, "--at", str(T0 + 5), "-o", "json"),
            ("count", TOPIC, "--from", str(T0), "--to", str(T0 + SPAN_MS // 2), "-o", "json"),
            ("describe", TOPIC, "-o", "json"),
        ],
        ids=lambda command: command[0],
    )
    def test_commands(self, copied: tuple[str, Path], command: tuple[str, ...]) -> None:
        url, directory = copied
        here = Cli(Path(directory)).ok(*command)
        there = Cli(Path(), url=url).ok(*command)
        # The numbers of bytes read differ, because a store's small objects are read whole. So they
        # are not compared.
        assert without_sizes(there.out.replace(url, str(directory))) == without_sizes(here.out)

    def test_options_instead_of_the_environment(
        self, copied: tuple[str, Path], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url, directory = copied
        for name in s3_server.environment():
            monkeypatch.delenv(name)
        options = s3_server.options()
        with tidelog.open(url, store_options=options) as there:
            assert TOPIC in there.topics()
        given = [f"--store-option={name}={value}" for name, value in options.items()]
        assert Cli(Path(), url=url).ok("topics", *given).out
        wrong = Cli(Path(), url=url).run("topics", "--store-option=nonsense=1")
        assert wrong.code == ExitCode.USAGE
        assert "store.nonsense" in wrong.err
        # A directory on disk also accepts store options, because they apply to its tiers.
        assert Cli(Path(directory)).ok("topics", "--store-option=region=x").out
