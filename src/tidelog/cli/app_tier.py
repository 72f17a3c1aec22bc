"""`tidelog tier`, declared for click; `app` takes it in."""

from typing import Final

import click

from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.surroundings import Surroundings, UsageProblem

# What each option goes with; '' is a move.
_WITH: Final = {
    "--to": ("", "--dry-run", "--restore"),
    "--roll": ("",),
    "--take-over": ("", "--restore"),
    "--drop-theirs": ("",),
    "--sizes": ("--verify",),
    "--dry-run": ("--collect",),
}


@click.command(
    "tier",
    epilog=examples(
        "tidelog tier flights --data data --to s3://bucket/logs",
        "tidelog tier --data data",
        "tidelog tier flights:0 --data data --dry-run",
        "tidelog tier --data data --status -o json",
        "tidelog tier --data data --collect",
        "tidelog tier flights --data data --verify",
    ),
)
@click.argument("target", required=False, metavar="[TOPIC[:P]]")
@data_option
@click.option("--to", "url", metavar="URL", help="Store to use from now on, such as s3://b/logs.")
@click.option("--dry-run", is_flag=True, help="Only say what would be copied or removed.")
@click.option("--roll", is_flag=True, help="Finish active segments first, so that all is copied.")
@click.option("--status", is_flag=True, help="Say what lies where; nothing is changed.")
@click.option("--verify", is_flag=True, help="Read all objects and compare their checksums.")
@click.option("--sizes", is_flag=True, help="With --verify: compare lengths only, reading nothing.")
@click.option("--collect", is_flag=True, help="Remove objects that no manifest names.")
@click.option("--restore", is_flag=True, help="Make a partition's damaged or lost record anew.")
@click.option("--take-over", is_flag=True, help="Go on with what another directory has written.")
@click.option(
    "--drop-theirs",
    is_flag=True,
    help="With --take-over: remove records of the store that local files lack or contradict.",
)
@click.option(
    "--grace",
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="What left a manifest, or was never in one, stays so long for readers and writers.",
)
@format_option
@click.pass_obj
def _tier(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    target: str | None,
    data: str | None,
    url: str | None,
    dry_run: bool,
    roll: bool,
    status: bool,
    verify: bool,
    sizes: bool,
    collect: bool,
    restore: bool,
    take_over: bool,
    drop_theirs: bool,
    grace: str,
    kind: Format,
) -> int:
    """Move finished segments to an object store, and let local copies go.

    Copies what is finished and not yet there, reads it back, notes it in the partition's manifest,
    then applies retention: total retention to both tiers, local.retention.* to local copies. Topics
    with remote.storage.enable=true take part; --to sets that, and tidelog.tier.url.

    Credentials come from the environment (AWS_ACCESS_KEY_ID ...) or --store-option.

    Exit code: 0 done, 1 failed, 2 a damaged segment was left behind, or --verify found something.
    """
    from tidelog.cli import tier

    named = [("--status", status), ("--verify", verify), ("--collect", collect)]
    chosen = [name for name, is_set in [*named, ("--restore", restore)] if is_set]
    if len(chosen) > 1:
        raise UsageProblem(f"{' and '.join(chosen)} are different things; give one of them")
    action = chosen[0] if chosen else "--dry-run" if dry_run else ""
    given = {"--to": url, "--roll": roll, "--take-over": take_over, "--sizes": sizes}
    given["--drop-theirs"] = drop_theirs
    given["--dry-run"] = dry_run and bool(chosen)
    for name in (name for name, is_set in given.items() if is_set):
        if action not in _WITH[name]:
            raise UsageProblem(f"{name} {_meaningless(name, action)}")
    if drop_theirs and not take_over:
        raise UsageProblem("--drop-theirs has no meaning without --take-over")
    command = tier.TierCommand(surroundings, data, target, kind, grace)
    if status:
        return command.status()
    if verify:
        return command.verify(sizes_only=sizes)
    if collect:
        return command.collect(dry_run=dry_run)
    if restore:
        return command.restore(url, takes_over=take_over)
    return command.move(
        tier.MoveWishes(
            url, dry_run=dry_run, roll=roll, takes_over=take_over, drops_theirs=drop_theirs
        )
    )


def _meaningless(name: str, action: str) -> str:
    """Why an option does not go with an action: what it goes with, where that is one option."""
    if name == "--sizes":
        return "has no meaning without --verify"
    return f"has no meaning with {action}"


COMMANDS: Final[tuple[click.Command, ...]] = (_tier,)
