"""Which producer ids were handed out: blocks of them, noted before the first of a block is used.

`tidelog-producer-ids.json` at the top of a directory holds the first id that no block has yet,
replaced atomically. So a kill costs at most the rest of a block, and no id is handed out twice.

Text: `{"version": 1, "next": ID}`. Where a directory has topics but no such file, or a damaged one,
nobody knows which ids its logs remember: numbers begin at a random place then.
"""

import json
from typing import Final

from tidelog.env import Env, FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.types import INT64_MAX

PRODUCER_IDS_FILE: Final = "tidelog-producer-ids.json"
BLOCK_SIZE: Final = 1000
_VERSION: Final = 1
# Above what Kafka counts up to in practice, below where 64 bits or JSON's readers come to an end.
_RANDOM_FIRST: Final = 1 << 40
_RANDOM_LAST: Final = 1 << 52


def encode_next(next_id: int) -> bytes:
    """The file's text."""
    return f"{json.dumps({'version': _VERSION, 'next': next_id})}\n".encode()


def read_next(fs: FileSystem, directory: str) -> int | None:
    """The first id that no block has; None where there is no file.

    Raises:
        CorruptFile: Not what `encode_next` writes.
        UnsupportedVersion: A later release wrote it.
        OSError: A call failed.
    """
    path = f"{directory}/{PRODUCER_IDS_FILE}"
    try:
        content = json.loads(files.read_file(fs, path))
        version, next_id = content["version"], content["next"]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFile(f"not a note of producer ids: {error}", path=path) from error
    if type(version) is not int or type(next_id) is not int or not 0 <= next_id < INT64_MAX:
        raise CorruptFile(f"version {version!r} and id {next_id!r}, numbers expected", path=path)
    if version != _VERSION:
        raise UnsupportedVersion(f"{path}: version {version}, {_VERSION} is known")
    return next_id


def take_block(env: Env, directory: str, *, is_new: bool, first: int | None = None) -> range:
    """Note the next block of ids as taken, durably, and hand it out. May run in any thread.

    Args:
        env: Files and randomness.
        directory: Whose ids.
        is_new: Whether the directory had no topics, so that nobody can remember any id.
        first: Where the last block ended, None to read it.

    Raises:
        UnsupportedVersion: A later release wrote the file.
        OSError: A call failed; no id was handed out.
    """
    if first is None:
        first = _first_free(env, directory, is_new=is_new)
    block = range(first, first + BLOCK_SIZE)
    path = f"{directory}/{PRODUCER_IDS_FILE}"
    files.write_atomically(env.files, path, encode_next(block.stop))
    return block


def _first_free(env: Env, directory: str, *, is_new: bool) -> int:
    try:
        found = read_next(env.files, directory)
    except CorruptFile:
        is_new, found = False, None
    if found is not None:
        return found
    return 0 if is_new else env.random.randrange(_RANDOM_FIRST, _RANDOM_LAST)
