"""`tidelog`, declared for click: which commands there are, and where each is declared.

A command's module is imported when the command is asked for, and its work when it runs: `tidelog
serve` has to answer soon after it starts.
"""

from importlib import import_module
from typing import Final

import click

import tidelog
from tidelog.cli.options import examples

# Command -> module of this package; it is one of the module's COMMANDS.
HOMES: Final = {
    "accept-clock": "app_reopen",
    "audit": "app_audit",
    "compact": "app_compact",
    "config": "app_topics",
    "count": "app_ranges",
    "create": "app_topics",
    "delete": "app_topics",
    "describe": "app_topics",
    "diff": "app_tables",
    "doctor": "app_checks",
    "dump": "app_records",
    "erase": "app_tables",
    "failover": "app_cluster",
    "follow": "app_cluster",
    "groups": "app_groups",
    "lag": "app_cluster",
    "latency": "app_ranges",
    "offsets": "app_records",
    "produce": "app_records",
    "read": "app_records",
    "reopen": "app_reopen",
    "retain": "app_time",
    "rewind": "app_cluster",
    "serve": "app_serve",
    "spark": "app_spark",
    "standby": "app_standby",
    "tier": "app_tier",
    "topics": "app_topics",
    "why": "app_time",
}


class _Commands(click.Group):
    """A group whose commands are imported at their first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click names it
        """All names, sorted."""
        return sorted(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None where there is none."""
        if cmd_name in HOMES and cmd_name not in self.commands:
            module = import_module(f"tidelog.cli.{HOMES[cmd_name]}")
            for command in module.COMMANDS:
                self.add_command(command)
        return super().get_command(ctx, cmd_name)


@click.group(
    name="tidelog",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "export TIDELOG_DATA=data",
        "tidelog create flights --partitions 4 --config retention.ms=-1",
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York' --clock append",
        "tidelog read flights --from -6h --limit 10",
    ),
)
@click.version_option(tidelog.__version__, prog_name="tidelog")
def app() -> None:
    """A commit log with a memory for time: Kafka's files, two clocks."""
