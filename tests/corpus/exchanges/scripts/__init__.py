"""The scripts of all APIs, by family."""

from tests.corpus.exchanges.scripts import (
    cluster,
    configs,
    groups,
    offsets,
    records,
    shares,
    topics,
    transactions,
)

FAMILIES = (cluster, configs, groups, offsets, records, shares, topics, transactions)
