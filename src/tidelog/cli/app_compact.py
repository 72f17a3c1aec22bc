"""`tidelog compact`, declared for click; `app` takes it in."""

from typing import Final

import click

from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.surroundings import Surroundings


@click.command(
    "compact",
    epilog=examples(
        "tidelog compact flights --data data",
        "tidelog compact flights:0 --data data --roll",
        "tidelog compact --data data --if-due -o json",
        "tidelog compact flights --data data --plan",
    ),
)
@click.argument("target", required=False, metavar="[TOPIC[:P]]")
@data_option
@click.option("--roll", is_flag=True, help="Finish active segments first, so that all is cleaned.")
@click.option("--if-due", is_flag=True, help="Only where the topic's settings ask for it now.")
@click.option("--plan", is_flag=True, help="Only show what the settings ask for now.")
@format_option
@click.pass_obj
def _compact(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    target: str | None,
    data: str | None,
    roll: bool,
    if_due: bool,
    plan: bool,
    kind: Format,
) -> int:
    """Keep the last record of each key in finished segments of compacted topics.

    Takes the directory's lock, or asks the broker that has it. Without a topic all that have
    cleanup.policy=compact are looked at. Offsets never change; the active segment is left alone.

    Exit code: 0 done, 1 failed, 2 a head could not be cleaned to its end.
    """
    from tidelog.cli.compact import CompactCommand
    from tidelog.cli.surroundings import UsageProblem

    if plan and roll:
        raise UsageProblem("--plan changes nothing, so it can't --roll")
    command = CompactCommand(surroundings, data, target, kind)
    return command.show() if plan else command.run(roll=roll, if_due=if_due)


COMMANDS: Final[tuple[click.Command, ...]] = (_compact,)
