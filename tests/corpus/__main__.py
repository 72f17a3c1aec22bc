"""`./run corpus`: replay the frozen behavior, record it, accept a difference, or list messages."""

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.corpus.book import Entry, belongs, read_part, write_part
from tests.corpus.differences import Difference, differences, report
from tests.corpus.messages import list_messages, missing_texts, typed_errors
from tests.corpus.stage import PartFailed, parts, perform

CHANGES: Final = Path(__file__).with_name("CHANGES.md")


class Refused(Exception):
    """The command's arguments are invalid."""


def main(arguments: list[str]) -> int:
    """Run a command; return 0 for success, 1 for differences or a failure, 3 for wrong usage."""
    parser = argparse.ArgumentParser(prog="./run corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    replay_options = commands.add_parser("replay", help="print what differs from what is kept")
    record_options = commands.add_parser("record", help="keep everything as it is now")
    accept_options = commands.add_parser("accept", help="keep named entries as they are now")
    messages_options = commands.add_parser("messages", help="list the messages for users")
    listing = ((replay_options, "*"), (record_options, "*"), (messages_options, "*"))
    for command, count in (*listing, (accept_options, "+")):
        command.add_argument("names", nargs=count, metavar="NAME", help="part, or part/page/...")
    record_options.add_argument("--again", action="store_true", help="over what is kept already")
    accept_options.add_argument("--reason", required=True, help="why the difference is wanted")
    messages_options.add_argument(
        "--missing", action="store_true", help="list texts of the source that no test has, instead"
    )
    options = parser.parse_args(arguments or ["replay"])
    try:
        named = _named_parts(options.names)
        if options.command == "record":
            return record(options.names or named, again=options.again)
        if options.command == "accept":
            return accept(options.names, options.reason)
        if options.command == "messages":
            return missing() if options.missing else messages(options.names)
        return replay(named, options.names)
    except (Refused, PartFailed) as error:
        print(f"corpus: {error}", file=sys.stderr)
        return 3 if isinstance(error, Refused) else 1


def replay(named: list[str], names: list[str]) -> int:
    """Print the differences in these parts; with `names`, only of the entries with these names."""
    found: list[Difference] = []
    count = 0
    for part in named:
        kept, now = read_part(part), perform(part)
        count += len(now)
        found += differences(kept, now)
    if names:
        found = [one for one in found if any(belongs(one.name, name) for name in names)]
    for line in report(found, whole=any("/" in name for name in names)):
        print(line)
    kinds = [one.kind for one in found]
    told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("differs", "missing", "new"))
    print(f"corpus: {count} entries of {', '.join(named)}: {told}")
    return 1 if found else 0


def record(named: list[str], *, again: bool) -> int:
    """Record the current entries of these parts."""
    for part in named:
        if "/" in part:
            raise Refused(f"record takes parts, not {part}: use accept")
        if read_part(part) and not again:
            raise Refused(f"{part} is recorded already: add --again, or use accept")
    for part in named:
        now = perform(part)
        write_part(part, now.values())
        print(f"corpus: {len(now)} entries of {part} recorded")
    return 0


def accept(names: list[str], reason: str) -> int:
    """Accept the current text of the named entries, and record the reason."""
    accepted: list[str] = []
    for part in _named_parts(names):
        kept, now = read_part(part), perform(part)
        for one in differences(kept, now):
            if any(belongs(one.name, name) for name in names):
                kept.pop(one.name, None)
                if one.name in now:
                    kept[one.name] = now[one.name]
                accepted.append(one.name)
        write_part(part, kept.values())
    for name in names:
        count = sum(belongs(one, name) for one in accepted)
        print(f"corpus: {name}: {count} entries accepted")
        if count:
            cell = " ".join(reason.split()).replace("|", "\\|")
            with CHANGES.open("a", encoding="utf-8") as changes:
                changes.write(f"| `{name}` | {count} | {cell} |\n")
    if not all(any(belongs(one, name) for one in accepted) for name in names):
        raise Refused("a name has no difference to accept")
    return 0


def messages(names: list[str]) -> int:
    """Print each message in the kept entries with these names; in all entries without names."""
    entries = _kept(_named_parts(names))
    if names:
        entries = [one for one in entries if any(belongs(one.name, name) for name in names)]
    found = list_messages(entries, typed_errors(read_part("surface")))
    for message, causes in found.items():
        for line in message.lines(causes):
            print(line)
    print(f"corpus: {len(found)} messages of {len(entries)} entries")
    return 0


def missing() -> int:
    """Print each text of a message in the source that is in no kept entry and in no test."""
    found = missing_texts(_kept(parts()))
    for text in found:
        print(f"{text.path}:{text.line}: {text.text}")
    print(f"corpus: {len(found)} texts of messages are in no entry and no test")
    return 0


def _kept(named: list[str]) -> list[Entry]:
    return [entry for part in named for entry in read_part(part).values()]


def _named_parts(names: list[str]) -> list[str]:
    """Return the parts of these names; all parts if no names are given."""
    named = {name.split("/", 1)[0] for name in names}
    if unknown := named.difference(parts()):
        raise Refused(f"no part {', '.join(sorted(unknown))}: there are {', '.join(parts())}")
    return [part for part in parts() if not named or part in named]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
