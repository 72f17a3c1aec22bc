"""Latencies of all topics in one sentence, for the first line of the command and of its page."""

from tidelog.amounts import estimate_text, plural
from tidelog.jobs.latency.tables import LatencyResult
from tidelog.scan.latency_verdict import latency_verdict


def latencies_verdict(result: LatencyResult) -> str:
    """Return the latency of the only topic, or of the slowest one of several."""
    totals = {name: topic.by_append.total() for name, topic in result.topics.items()}
    if len(totals) == 1:
        ((name, total),) = totals.items()
        return latency_verdict(name, total)
    known = {name: total.percentile(99) or 0 for name, total in totals.items() if total.count}
    if not known:
        return f"no record of {plural(len(totals), 'topic')} has both an append and a create time"
    records = sum(total.count for total in totals.values())
    slowest = max(known, key=lambda name: known[name])
    return (
        f"{plural(records, 'record')} of {plural(len(totals), 'topic')}; the slowest topic is"
        f" {slowest}: 99% of its records were appended within"
        f" {estimate_text(max(known[slowest], 0) / 1000)}"
    )
