"""Users and rules of a directory's broker: SCRAM credentials and ACLs, as older versions kept them.

They lay in a small file at the top, `tidelog-security.json`. It is read once and taken over into
`tidelog-metadata.log` (docs/decisions/0019). It holds no password: a credential is salt,
iterations, StoredKey and ServerKey (RFC 5802), in hexadecimal.

Text of the file, format version 1:
`{"version": 1, "scram": {USER: {MECHANISM: [ITERATIONS, SALT, STORED, SERVER]}}, "acls": [[TYPE,
NAME, PATTERN, PRINCIPAL, HOST, OPERATION, PERMISSION]]}`, the numbers in rules as on the wire.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.types import Buffer

SECURITY_FILE: Final = "tidelog-security.json"
SECURITY_VERSION: Final = 1
_NUMBER_MAX: Final = 127

# Type, name, pattern, principal, host, operation, permission.
AclRow: TypeAlias = tuple[int, str, int, str, str, int, int]


@dataclass(frozen=True, slots=True)
class KeptCredential:
    """A SCRAM credential as bytes."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecurityState:
    """All of it.

    Attributes:
        scram: Credentials by user and the mechanism's number.
        acls: Rules, in any order.
    """

    scram: Mapping[tuple[str, int], KeptCredential] = field(default_factory=dict)
    acls: frozenset[AclRow] = frozenset()


def decode_security(data: Buffer) -> SecurityState:
    """The state in a file's text.

    Raises:
        CorruptFile: It is no such text; no part of the content is shown.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        found: object = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise CorruptFile("not JSON") from None
    if not isinstance(found, dict) or type(found.get("version")) is not int:
        raise CorruptFile("an object with a version expected")
    if found["version"] > SECURITY_VERSION:
        version = found["version"]
        text = f"{SECURITY_FILE} of version {version}, {SECURITY_VERSION} is known"
        raise UnsupportedVersion(text)
    users, rows = found.get("scram"), found.get("acls")
    if found["version"] < 1 or not isinstance(users, dict) or not isinstance(rows, list):
        raise CorruptFile("`scram` and `acls` expected")
    return SecurityState(_credentials(users), frozenset(_rule(row) for row in rows))


def _credentials(users: Mapping[str, object]) -> dict[tuple[str, int], KeptCredential]:
    found = {}
    for user, mechanisms in users.items():
        if not isinstance(mechanisms, dict):
            raise CorruptFile("credentials of a user by mechanism expected")
        for number, row in mechanisms.items():
            if number not in {"1", "2"}:
                raise CorruptFile("a credential of an unknown mechanism")
            found[user, int(number)] = _credential(row)
    return found


def _credential(row: object) -> KeptCredential:
    if not isinstance(row, list) or len(row) != 4 or type(row[0]) is not int or row[0] < 1:
        raise CorruptFile("a credential is [iterations, salt, stored key, server key]")
    try:
        salt, stored, server = (bytes.fromhex(part) for part in row[1:])
    except (TypeError, ValueError):
        raise CorruptFile("a credential with a part that is no hexadecimal") from None
    return KeptCredential(row[0], salt, stored, server)


def _rule(row: object) -> AclRow:
    kinds = (int, str, int, str, str, int, int)
    if not isinstance(row, list) or len(row) != len(kinds):
        raise CorruptFile(f"a rule has {len(kinds)} parts")
    for part, kind in zip(row, kinds, strict=True):
        is_outside = isinstance(part, int) and not 0 <= part <= _NUMBER_MAX
        if type(part) is not kind or is_outside:
            raise CorruptFile("a rule with a part of another type, or out of its range")
    return row[0], row[1], row[2], row[3], row[4], row[5], row[6]


def read_security(fs: FileSystem, directory: str) -> SecurityState:
    """What a directory's file says; nothing where there is none.

    Raises:
        CorruptFile, UnsupportedVersion: As `decode_security`, with the path. Nobody guesses then:
            a broker without its rules would let everybody in.
        OSError: A call failed.
    """
    path = f"{directory}/{SECURITY_FILE}"
    try:
        return decode_security(files.read_file(fs, path))
    except FileNotFoundError:
        return SecurityState()
    except CorruptFile as error:
        raise error.located(path) from error
