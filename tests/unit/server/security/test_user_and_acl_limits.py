"""Limits on a broker's ACLs and SCRAM users; salts and iteration counts for unknown users."""

import asyncio
from pathlib import Path

import pytest
from tests.faults.hooked import FailingDisk
from tests.worlds.brokers.running import opened_node

from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.env import Env
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import CREATE_ACLS, DELETE_ACLS
from tidelog.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.server.admin import security_store
from tidelog.server.api import security as handlers
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.security import create_acls, delete_acls
from tidelog.server.security.sasl import ScramMechanism, Shape
from tidelog.storage.directory.broker_files import ScramCredential

WITH_ACLS = {"authorizer.class.name": STANDARD_AUTHORIZER}
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


async def create(node: Node, *names: str) -> list[int]:
    """Create ACLs that allow alice to read these topics; return the error codes."""
    context = RequestContext(node, CREATE_ACLS, 3, None, ClientInfo(1, "here"))
    creations = [
        AclCreation(
            resource_type=2,
            resource_name=name,
            resource_pattern_type=3,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=3,
        )
        for name in names
    ]
    said = await create_acls(context, CreateAclsRequest(creations=creations))
    assert isinstance(said, CreateAclsResponse)
    return [each.error_code for each in said.results]


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (security_store, handlers):
        monkeypatch.setattr(module, "ACLS_MAX", 5)


@pytest.mark.usefixtures("five")
def test_the_number_of_acls_never_exceeds_the_limit(tmp_path: Path) -> None:
    async def check() -> None:
        with opened_node(tmp_path, WITH_ACLS) as node:
            said = await asyncio.gather(
                create(node, "a", "b"), create(node, "c", "d", "a"), create(node, "e", "f")
            )
            assert [*said] == [[0, 0], [0, 0, 0], [0, ErrorCode.POLICY_VIOLATION]]
            assert node.authorizer is not None
            assert sorted(acl.name for acl in node.authorizer.acls) == ["a", "b", "c", "d", "e"]

    asyncio.run(check())


@pytest.mark.usefixtures("five")
def test_an_existing_acl_needs_no_room(tmp_path: Path) -> None:
    async def check() -> None:
        with opened_node(tmp_path, WITH_ACLS) as node:
            assert await create(node, *"abcde") == [0] * 5
            assert await create(node, "f", "c", "c") == [ErrorCode.POLICY_VIOLATION, 0, 0]

    asyncio.run(check())


def test_a_failed_deletion_keeps_the_error_of_an_invalid_filter(tmp_path: Path) -> None:
    invalid = DeleteAclsFilter(
        resource_type_filter=99, pattern_type_filter=1, operation=1, permission_type=1
    )
    every = DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    disk = FailingDisk()

    async def check() -> None:
        with opened_node(tmp_path, WITH_ACLS, env=Env(files=disk)) as node:
            assert await create(node, "a") == [0]
            disk.is_failing = True
            context = RequestContext(node, DELETE_ACLS, 3, None, ClientInfo(1, "here"))
            said = await delete_acls(context, DeleteAclsRequest(filters=[invalid, every]))
            disk.is_failing = False
            assert isinstance(said, DeleteAclsResponse)
            codes = [each.error_code for each in said.filter_results]
            assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.KAFKA_STORAGE_ERROR]
            assert not any(each.matching_acls for each in said.filter_results)
            assert node.authorizer is not None
            assert [acl.name for acl in node.authorizer.acls] == ["a"]

    asyncio.run(check())


def test_shapes_follow_the_users_and_outlive_a_start(tmp_path: Path) -> None:
    def change(kept: dict[tuple[str, int], ScramCredential]) -> None:
        kept["alice", SHA_256] = ScramCredential(b"\xff" * 30, 8192, b"s", b"k")
        kept["bob", SHA_256] = ScramCredential(b"1a2b3c", 8192, b"s", b"k")
        kept["carol", SHA_256] = ScramCredential(b"zz9", 8192, b"s", b"k")
        kept["carol", SHA_512] = ScramCredential(b"zz9", 5000, b"s", b"k")

    async def check() -> None:
        found = {Shape(8192, 30): 1, Shape(8192, 0): 2}
        with opened_node(tmp_path, WITH_ACLS) as node:
            assert not node.rules.shapes(SHA_256)
            await node.rules.change_credentials(change)
            assert node.rules.shapes(SHA_256) == found
        with opened_node(tmp_path, WITH_ACLS) as node:
            assert node.rules.shapes(SHA_256) == found
            assert node.rules.shapes(SHA_512) == {Shape(5000, 0): 1}
            await node.rules.change_credentials(lambda kept: kept.clear())
            assert not node.rules.shapes(SHA_512)

    asyncio.run(check())
