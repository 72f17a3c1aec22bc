"""What a mirror has to say of its run: batches, partitions, lag."""

import json
from typing import TYPE_CHECKING, TypeAlias

from tidelog.cluster.offset_map import SourcePartition
from tidelog.env import Env
from tidelog.spark.jobs.mirror_run import Mirror
from tidelog.spark.jobs.mirror_start import read_sources

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# source, topic, partition, target, target topic, copied from, copied to, offsets, end, lag
SummaryRow: TypeAlias = tuple[str, str, int, str, str, int, int, int, int, int]


def summary_rows(started: Mirror, env: Env) -> list[SummaryRow]:
    """A row for each partition of a source: what was copied in this run, and what is left.

    Offsets that hold no record (markers, what compaction took) count as copied only up to the last
    record that was copied, so a lag of a few offsets may be nothing but these.
    """
    plan = started.plan
    rows: list[SummaryRow] = []
    pairs, found = plan.pairs, started.found
    for number, facts in read_sources(plan, env).items():
        pair = pairs[number]
        for partition, end in enumerate(facts.ends):
            place = SourcePartition(number, partition)
            before = started.start_map.copied.get(place)
            after = found.copied.get(place)
            done = 0 if after is None else after.end
            begun = done if before is None and after is None else 0
            if before is not None:
                begun = before.end
            elif after is not None:
                begun = after.start
            rows.append(
                (
                    str(plan.sources[pair.place].place),
                    pair.topic,
                    partition,
                    str(plan.target),
                    pair.target,
                    begun,
                    done,
                    done - begun,
                    end,
                    max(end - done, 0),
                )
            )
    return rows


def lags_by_batch(query: "StreamingQuery") -> dict[int, int]:
    """How many offsets all sources had left behind each of the last batches, as Spark kept them."""
    found: dict[int, int] = {}
    for progress in query.recentProgress:
        told = json.loads(progress.json)
        texts = [source.get("latestOffset") for source in told.get("sources", ())]
        parsed = [text if isinstance(text, dict) else json.loads(text or "{}") for text in texts]
        lags = [one["metrics"]["offsetsBehindLatest"] for one in parsed if "metrics" in one]
        if lags:
            found[int(told["batchId"])] = sum(lags)
    return found
