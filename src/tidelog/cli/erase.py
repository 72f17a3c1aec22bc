"""`tidelog erase`: a key out of a topic's files, with a receipt."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import click

from tidelog.cli.options import Encoding, data_option, examples, key_as_option, topic_argument
from tidelog.cli.output import typed_bytes
from tidelog.cli.places import open_directory
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.errors import DirectoryLocked

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient

Receipt = Mapping[str, object]


@click.command(
    "erase",
    epilog=examples(
        "tidelog erase flights --key N14228",
        "tidelog erase flights --key N14228 --execute > receipt.json",
        "tidelog erase orders --key 42 --key-as int64 --execute",
    ),
)
@topic_argument
@data_option
@click.option("--key", required=True, metavar="K", help="The key; how it is read says --key-as.")
@key_as_option
@click.option("--execute", is_flag=True, help="Do it; else only what would be done is told.")
@click.pass_obj
def erase(
    surroundings: Surroundings,
    topic: str,
    data: str | None,
    key: str,
    key_as: Encoding,
    execute: bool,
) -> ExitCode:
    """Take every record of a key out of a topic's files.

    Appends a tombstone, writes segments anew that hold the key, reads all files once more, and
    prints a receipt (JSON) with the digests of what was searched. What can't be reached from here
    is named; the exit code is 2 where a file in reach still holds the key.
    """
    from tidelog.frames import needs_arrow

    needs_arrow()
    receipt = _receipt(surroundings, data, topic, typed_bytes(key, key_as), execute=execute)
    surroundings.stdout.write(f"{json.dumps(receipt, indent=1)}\n")
    _say(surroundings, receipt)
    return ExitCode.FINDINGS if receipt["not_reached"] else ExitCode.OK


def _receipt(
    surroundings: Surroundings, data: str | None, topic: str, key: bytes, *, execute: bool
) -> Receipt:
    from tidelog.storage.erasure import erase as erase_key

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
