"""The store over a real S3-compatible server, in a process of its own."""

import pytest
from tests.peers.s3_server import S3Server, s3_server
from tests.unit.objects.store_rules import StoreRules

from tidelog.errors import StorageFailure
from tidelog.objects import ObjectStore, open_store

__all__ = ["s3_server"]


@pytest.fixture
def opened(s3_server: S3Server) -> ObjectStore:
    return open_store(f"s3://{s3_server.bucket()}/some/prefix", s3_server.options())


class TestS3(StoreRules):
    """The rules of every store."""


def test_a_missing_bucket_names_the_next_step(s3_server: S3Server) -> None:
    store = open_store("s3://there-is-none/p", s3_server.options())
    for action in (lambda: list(store.list("")), lambda: store.put("a", b"x")):
        with pytest.raises(StorageFailure, match=r"s3://there-is-none/p.*bucket's name"):
            action()


def test_nobody_answers(s3_server: S3Server) -> None:
    options = s3_server.options() | {"endpoint": "http://127.0.0.1:9", "retries": "1"}
    store = open_store("s3://bucket/p", options)
    with pytest.raises(StorageFailure, match=r"s3://bucket/p/a: read failed.*AWS_ENDPOINT_URL"):
        store.read("a")
    with pytest.raises(StorageFailure, match="AWS_ENDPOINT_URL"):
        store.put_if("a", b"x", etag=None)
