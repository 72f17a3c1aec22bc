"""`tidelog erase`: a key out of a topic's files, with a receipt."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tidelog.cli.places import open_directory
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.errors import DirectoryLocked
from tidelog.frames import needs_arrow
from tidelog.storage.erasure import erase as erase_key

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient

Receipt = Mapping[str, object]


def erase(
    surroundings: Surroundings, data: str | None, topic: str, key: bytes, *, execute: bool
) -> ExitCode:
    """Erase a key, or say where it is; prints the receipt.

    Where another process has the directory open, that one is asked to do it.

    Raises:
        DirectoryLocked: It has, and can't be asked.
        As `storage.erasing.erase`.
    """
    needs_arrow()
    receipt = _receipt(surroundings, data, topic, key, execute=execute)
    surroundings.stdout.write(f"{json.dumps(receipt, indent=1)}\n")
    _say(surroundings, receipt)
    return ExitCode.FINDINGS if receipt["not_reached"] else ExitCode.OK


def _receipt(
    surroundings: Surroundings, data: str | None, topic: str, key: bytes, *, execute: bool
) -> Receipt:
    try:
        with open_directory(surroundings, data, writable=execute) as directory:
            return erase_key(directory.log_dir, topic, key, execute=execute).receipt()
    except DirectoryLocked:
        holder = _holder(data or "")
        if holder is None:
            raise
        with holder:
            return holder.erase(topic, key, execute=execute)


def _holder(data: str) -> "ControlClient | None":
    """The process that has the directory, where it erases on request."""
    from tidelog.control.client import find_holder

    holder = find_holder(data)
    if holder is not None and "erase" not in cast("list[str]", holder.status()["verbs"]):
        holder.close()
        return None
    return holder


def _say(surroundings: Surroundings, receipt: Receipt) -> None:
    for line in cast("list[str]", receipt["not_reached"]):
        surroundings.say(f"not reached: {line}")
    for line in cast("list[str]", receipt["out_of_reach"]):
        surroundings.say(f"nobody has looked at: {line}")
    count = receipt["records"]
    if not count:
        surroundings.say(f"no record of the key in {receipt['topic']}")
    elif not receipt["executed"]:
        surroundings.say(f"{count} records of the key; --execute erases them")
    elif receipt["complete"]:
        surroundings.say(f"{count} records of the key erased from {receipt['topic']}")
