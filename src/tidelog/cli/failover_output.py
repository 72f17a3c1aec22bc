"""What `tidelog failover` prints: a table and sentences for people, one object for scripts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli import output
from tidelog.cli.options import Format
from tidelog.cli.output import Cell, Column
from tidelog.cli.surroundings import Surroundings
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.jobs.failover.job import Plan
    from tidelog.jobs.failover.measure import TopicLatency
    from tidelog.jobs.failover.rules import Start
    from tidelog.jobs.failover.verify import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What there is to say.

    Attributes:
        plan: Where the group would go on.
        verdicts: What comparing the records showed, None where it was not asked for.
        executed: Whether it was committed.
    """

    plan: "Plan"
    verdicts: "list[Verdict] | None"
    executed: bool


def show(surroundings: Surroundings, report: Report, kind: Format, zone: str | None) -> None:
    """Print all of it; as CSV the starts alone, with the rest on stderr."""
    if kind is Format.JSON:
        output.print_object(surroundings, _object(report, zone))
        return
    rows = [_row(report.plan, start) for start in report.plan.starts]
    output.print_rows(surroundings, _columns(), rows, kind, zone=zone)
    for line in _sentences(report):
        surroundings.say(line)


def _columns() -> list[Column]:
    return [
        output.text("topic"),
        output.number("partition"),
        output.number("position_on_a"),
        output.number("old_offset"),
        output.number("new_offset"),
        output.time("time"),
        output.time("searched"),
        output.text("found_by"),
        output.text("why"),
    ]


def _row(plan: "Plan", start: "Start") -> list[Cell]:
    old = plan.committed.get(start.partition)
    return [
        start.partition.topic,
        start.partition.partition,
        plan.position_of(start.partition),
        None if old is None else old.offset,
        start.offset,
        NO_TIMESTAMP if start.time_ms is None else start.time_ms,
        NO_TIMESTAMP if start.search_ms is None else start.search_ms,
        start.found.value,
        start.reason,
    ]


# -- for scripts ---------------------------------------------------------------------------------


def _object(report: Report, zone: str | None) -> dict[str, Cell]:
    plan = report.plan
    content: dict[str, Cell] = {
        "group": plan.question.group,
        "executed": report.executed,
        "margin": {
            "latency_ms": plan.margin.latency_ms,
            "skew_ms": plan.margin.skew_ms,
            "measured": plan.is_measured and not plan.is_by_map,
            "samples": [_sample(latency) for latency in plan.latencies],
        },
        "topics": [
            {"topic": topic, "mapping": mapped.mapping.value, "why": mapped.reason}
            for topic, mapped in plan.mapped.items()
        ],
        "partitions": [_fields(plan, start, zone) for start in plan.starts],
        "verify": None,
    }
    if report.verdicts is not None:
        content["verify"] = [_verdict(verdict, zone) for verdict in report.verdicts]
    return content


def _fields(plan: "Plan", start: "Start", zone: str | None) -> dict[str, Cell]:
    content: dict[str, Cell] = {}
    for column, cell in zip(_columns(), _row(plan, start), strict=True):
        if column.kind is output.Kind.TIME:
            content |= output.time_fields(column.name, cell, zone)
        else:
            content[column.name] = cell
    return content


def _sample(latency: "TopicLatency") -> dict[str, Cell]:
    return {
        "cluster": latency.cluster,
        "topic": latency.topic,
        "records": latency.count,
        "is_exact": latency.is_exact,
        "for_ms": latency.for_ms,
        "median_ms": latency.percentile_ms(50),
        "p99_ms": latency.percentile_ms(99),
        "max_ms": latency.max_ms,
        "skew_ms": latency.skew_ms,
    }


def _verdict(verdict: "Verdict", zone: str | None) -> dict[str, Cell]:
    return {
        "topic": verdict.topic,
        "compared": "key, create time, value" if verdict.by_time else "key, value",
        "unconsumed": verdict.unconsumed,
        "after": verdict.after,
        "missed": verdict.missed,
        "absent": verdict.absent,
        "duplicates": verdict.duplicates,
        "only_on_b": verdict.only_on_b,
        "never_on_a": verdict.never_on_a,
        "examples": [
            {
                "partition": example.partition.partition,
                "offset": example.offset,
                **output.time_fields("time", example.time_ms, zone),
            }
            for example in verdict.examples
        ],
    }


# -- for people ----------------------------------------------------------------------------------


def _sentences(report: Report) -> list[str]:
    plan = report.plan
    lines = [_sample_line(latency) for latency in plan.latencies]
    lines.append(_margin_line(plan))
    lines += [f"{name}: {mapped.sentence}" for name, mapped in plan.mapped.items()]
    for verdict in report.verdicts or ():
        lines += _verdict_lines(verdict)
    if report.executed:
        count = len(plan.starts)
        lines.append(f"group {plan.question.group}: committed {count} partitions on B")
    return lines


def _margin_line(plan: "Plan") -> str:
    if plan.is_by_map:
        return "no margin: the map of the mirror tells every start"
    origin = "largest measured" if plan.is_measured else "as stated"
    return (
        f"margin: latency {plan.margin.latency_ms} ms ({origin}), clock skew"
        f" {plan.margin.skew_ms} ms"
    )


def _sample_line(latency: "TopicLatency") -> str:
    until = "append" if latency.is_exact else "arrival"
    return (
        f"measured {latency.topic} on {latency.cluster}: {latency.count} records in"
        f" {latency.for_ms / 1000:g} s, create time to {until}: half within"
        f" {latency.percentile_ms(50)} ms, 99 % within {latency.percentile_ms(99)} ms, all within"
        f" {latency.max_ms} ms, clocks ahead by up to {latency.skew_ms} ms; expect one record in"
        f" {latency.count + 1} to be later"
    )


def _verdict_lines(verdict: "Verdict") -> list[str]:
    compared = "key, create time and value" if verdict.by_time else "key and value"
    there = verdict.unconsumed - verdict.missed - verdict.absent
    first = (
        f"verified {verdict.topic} by {compared}: of {verdict.unconsumed} records not consumed on A"
        f" {there} lie after the start on B; {verdict.duplicates} of the {verdict.after} there were"
        f" consumed on A and come twice, {verdict.only_on_b} were not found on A"
    )
    lines = [first]
    if verdict.missed:
        places = ", ".join(f"{e.partition} at {e.offset}" for e in verdict.examples)
        lines.append(
            f"{verdict.topic}: {verdict.missed} records would be MISSED, they lie before the start"
            f" on B (such as {places}); a longer --max-latency starts earlier"
        )
    if verdict.never_on_a:
        lines.append(
            f"{verdict.topic}: {verdict.never_on_a} records before the start on B were not found on"
            " A; if they never reached it, nobody has consumed them, and only an earlier start"
            " brings them (a longer --max-latency)"
        )
    if verdict.absent:
        lines.append(
            f"{verdict.topic}: {verdict.absent} records are not on B; if they are on their way"
            " they will come after the start, else no start brings them"
        )
    return lines
