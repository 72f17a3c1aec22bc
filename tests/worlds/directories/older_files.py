"""Files that older versions wrote, as they wrote them."""

import json

from tidelog.env import FileSystem
from tidelog.storage import files
from tidelog.storage.security_file import SECURITY_FILE, SECURITY_VERSION, SecurityState


def encode_security(state: SecurityState) -> bytes:
    """The file's text, sorted."""
    scram: dict[str, dict[str, list[int | str]]] = {}
    for (user, mechanism), kept in sorted(state.scram.items()):
        parts = (kept.salt, kept.stored_key, kept.server_key)
        row: list[int | str] = [kept.iterations, *(part.hex() for part in parts)]
        scram.setdefault(user, {})[str(mechanism)] = row
    rows = [list(row) for row in sorted(state.acls)]
    text = json.dumps({"version": SECURITY_VERSION, "scram": scram, "acls": rows}, indent=1)
    return f"{text}\n".encode("ascii")


def write_security(fs: FileSystem, directory: str, state: SecurityState) -> None:
    """Replace a directory's file, durably."""
    files.write_atomically(fs, f"{directory}/{SECURITY_FILE}", encode_security(state))
