"""The recorded requests cover each announced API and version; the codec is lossless."""

import re
from functools import cache

import pytest
from tests.corpus.book import Entry, read_part
from tests.corpus.exchanges.codec import decode, encode
from tests.corpus.exchanges.identities import USERS
from tests.corpus.exchanges.schema import api_key, message
from tests.corpus.exchanges.session import FAILED
from tests.corpus.exchanges.sessions.legacy import OLD
from tests.corpus.exchanges.sessions.rights import WITHOUT_RIGHTS
from tests.corpus.exchanges.values import Tree, lines

KINDS = {"normal", "refused", "edge"}
# Requests (API, version) that are valid with any content, so they are refused only if their last
# byte is missing.
NEVER_REFUSED = {("api_versions", 0), ("api_versions", 1), ("api_versions", 2)} | {
    ("describe_cluster", 0)
}
TITLE = re.compile(r"^== \S+: (\w+) v(\d+) (\w+)", re.MULTILINE)


@cache
def kept() -> dict[str, Entry]:
    return read_part("wire")


def announced() -> list[tuple[str, int]]:
    rows = (re.findall(r"\w+", row) for row in kept()["wire/announced/apis"].text.split("\n"))
    return [
        (api, version)
        for api, first, _, last in rows
        for version in range(int(first), int(last) + 1)
    ]


def kinds_of(text: str, api: str, version: int) -> set[str]:
    return {
        kind for name, number, kind in TITLE.findall(text) if (name, int(number)) == (api, version)
    }


def test_each_announced_version_has_each_kind_of_request() -> None:
    wanted = announced()
    assert len({api for api, _ in wanted}) >= 64
    for api, version in wanted:
        found = kinds_of(kept()[f"wire/{api}/v{version:02}"].text, api, version)
        missing = KINDS - found
        assert "torn" in found, (api, version)
        assert missing <= ({"refused"} if (api, version) in NEVER_REFUSED else set()), (
            api,
            version,
        )


def test_no_script_has_failed_when_it_was_kept() -> None:
    assert [name for name in kept() if name.endswith(f"-{FAILED}")] == []


def test_each_version_of_old_clients_has_each_kind_of_request() -> None:
    for api, versions in OLD.items():
        for version in versions:
            text = kept()[f"wire/session-legacy/{api}-v{version}"].text
            assert kinds_of(text, api, version) >= KINDS


def test_each_identity_sends_each_api() -> None:
    for api in {api for api, _ in announced()} - WITHOUT_RIGHTS:
        text = kept()[f"wire/session-rights/{api}"].text
        assert all(f" as {user}\n" in text for user in USERS), api


def test_each_request_has_a_response_or_a_disconnect() -> None:
    """The recorder does not check that an entry has a response or a disconnect."""
    for name, entry in kept().items():
        if name.count("/") == 2 and "/session-" not in name and name != "wire/announced/apis":
            assert "\n< " in entry.text, name


@pytest.mark.parametrize(("api", "version"), [("metadata", 9), ("metadata", 1), ("fetch", 17)])
def test_a_message_is_read_as_it_was_written(api: str, version: int) -> None:
    asked = message(api_key(api), version, "request")
    tree: Tree = {"topics": [], "#tags": {"77": b"later"}}
    given = encode(asked, tree)
    read = decode(asked, given)
    assert encode(asked, read) == given
    assert ("#tags.77: 5 bytes 6c61746572" in list(lines(read))) == asked.flexible
