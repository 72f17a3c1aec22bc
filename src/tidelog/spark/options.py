"""Option texts of `format("tidelog")`: names, and how their text is read.

Where a meaning is the same as the Kafka connector's, so is the name. Names are case-insensitive.
An option that nobody knows is an error that names the nearest one: a misspelled filter would read
a whole topic, or write somewhere else, without a word.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from tidelog.errors import InvalidRequest
from tidelog.record.serde import SERDE_NAMES

READ_OPTIONS: Final = {
    "path": "directory of topics: a path, or the URL of an object store",
    "kafka.bootstrap.servers": "brokers to read from instead, host:port[,host:port]",
    "kafka.*": "settings of the client under Kafka's names, such as kafka.security.protocol",
    "store.*": "settings of the object store that path names",
    "subscribe": "topics, separated by commas",
    "topic": "one topic, under the name that a write gives it",
    "subscribePattern": "regular expression for whole names of topics",
    "assign": 'partitions, {"topic": [0, 1]}',
    "startingOffsets": 'earliest, or offsets by partition, {"topic": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest, or offsets by partition, {"topic": {"0": 42, "1": -1}}',
    "startingTimestamp": "start of the time range, inclusive: ms, or as docs/time.md says",
    "endingTimestamp": "end of the time range, exclusive",
    "startingOffsetsByTimestamp": 'starts by partition, {"topic": {"0": ms}}',
    "endingOffsetsByTimestamp": 'ends by partition, {"topic": {"0": ms}}',
    "startingOffsetsByTimestampStrategy": "error or latest (reads nothing), if nothing is so late",
    "timeRange": "exact (the records inside) or positions (offsets by time, as the connector)",
    "readUntil": "written (all that is there) or flushed (what a crash can't take back)",
    "clock": "record (timestamp) or append (when the log took it)",
    "strict": "true: records without a time on the clock asked are an error",
    "columns": "columns to read, separated by commas",
    "table": "true: the record that stands for each key alone, of committed ones (docs/tables.md)",
    "asOf": "with table: as of this time, inclusive; all that is there where left out",
    "inexact": "with table: refuse or mark, where compaction or retention took the past away",
    "keyAs": "what keys are, and so the type of the column: bytes, string, int32, int64, ...",
    "valueAs": "what values are, likewise",
    "mode": "failfast, or permissive: null where a cell can't be shown, _corrupt_record says why",
    "includeHeaders": "true: with the column headers",
    "includeAppendTimestamp": "true: with the column appendTimestamp",
    "minPartitions": "make at least about so many tasks",
    "maxRecordsPerPartition": "how many offsets a task reads, at most",
    "splitBytes": "about how many bytes of log a task reads, at most",
    "pushdown": "false: leave all filters to Spark, also where the session pushes them down",
    "isolation": "read_uncommitted or read_committed",
    "kafka.isolation.level": "the same under the connector's name",
    "failOnDataLoss": "true: offsets asked for that are gone are an error, those of a segment that"
    " is missing in the middle of the log included",
    "zoneCache": "folder on the driver for zone maps of segments that have none, such as Kafka's",
    "kafkaConsumer.pollTimeoutMs": "how long a task waits for the next records of a broker, in ms",
    "fetchOffset.numRetries": "how often the driver asks brokers for offsets before it gives up",
    "fetchOffset.retryIntervalMs": "how long it waits between two attempts, in ms",
    "groupIdPrefix": "what the client's group id begins with; nothing is ever committed to a group",
}
WRITE_OPTIONS: Final = {
    "path": "directory of topics",
    "kafka.bootstrap.servers": "brokers to write to instead, host:port[,host:port]",
    "kafka.*": "settings of the producer under Kafka's names, such as kafka.security.protocol",
    "topic": "topic for all rows, instead of the column topic",
    "keyAs": "what the column key becomes: bytes, string, int32, int64, double, uuid or json",
    "valueAs": "what the column value becomes, likewise",
    "createPartitions": "make the topic where it is missing, with so many partitions",
    "createConfig": 'settings of a topic that is made, {"retention.ms": "-1"}',
    "compression": "codec for topics whose compression.type is producer",
    "batchBytes": "where a batch is closed, in bytes before compression",
    "clock.ms": "what the log's clock says at the commit, in ms; the machine's where missing",
    "includeHeaders": "accepted as in the connector; headers are written where there is a column",
    "delivery": "to brokers: idempotent, or exactly-once (one transaction for each task)",
    "transactionalIdPrefix": "what the transactional ids of exactly-once begin with",
    "markerTopic": "compacted topic where exactly-once notes what was written",
    "txnAppId": "name of a writer that numbers its batch writes",
    "txnVersion": "number of this write; a topic that has it, or a later one, gets nothing",
    "lockWaitMs": "how long a commit waits for another writer of the directory, in ms",
}
BOOTSTRAP: Final = "kafka.bootstrap.servers"
# What options of these prefixes mean is for somebody else to say.
PREFIXES: Final = ("kafka.", "store.")
# Spark reads these itself, and hands them on to the sink of a streaming query.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
# What Spark's catalog says about a table of its own (`CREATE TABLE ... USING tidelog`).
_CATALOGS_OWN: Final = "provider"
_NO_CATALOG: Final = (
    "A table of Spark's catalog (CREATE TABLE, saveAsTable) can't be read or written by its name"
    " alone: Spark does not pass its options to Python data sources. Use CREATE TEMPORARY VIEW ..."
    " USING tidelog OPTIONS (path '...', topic '...') for SELECT and INSERT, or"
    " spark.read.format('tidelog') and save()"
)
_TRUTH: Final = {"true": True, "false": False}

_Value = TypeVar("_Value")


class Options:
    """Option texts by name, whatever the case. Reads them and says what is wrong with one."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Take the options.

        Raises:
            InvalidRequest: One that is not known, with the nearest that is.
        """
        self._given = {name.lower(): text for name, text in given.items()}
        self._names = {name.lower(): name for name in known}
        if not self._given:
            raise InvalidRequest(f"there are no options at all. {_NO_CATALOG}")
        for name in self._given:
            self._check_name(name)

    def _check_name(self, name: str) -> None:
        if name in self._names or name in SPARKS_OWN:
            return
        for prefix in PREFIXES:
            if name.startswith(prefix) and name != prefix and f"{prefix}*" in self._names:
                return
        if _CATALOGS_OWN in self._given:
            raise InvalidRequest(_NO_CATALOG)
        raise InvalidRequest(f"unknown option {name!r}: {nearest(name, self._names.values())}")

    def text(self, name: str) -> str | None:
        """The option's text, None where it was not given."""
        return self._given.get(name.lower())

    def need(self, name: str, why: str) -> str:
        """The option's text; raises InvalidRequest where it was not given."""
        found = self.text(name)
        if not found:
            raise InvalidRequest(f"option {name} is missing: {why}")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        found = self.text(name)
        return default if found is None else self._choose(name, found, _TRUTH)

    def choice(self, name: str, allowed: Mapping[str, _Value], default: str) -> _Value:
        """One of a few words."""
        return self._choose(name, self.text(name) or default, allowed)

    def _choose(self, name: str, text: str, allowed: Mapping[str, _Value]) -> _Value:
        word = text.strip().lower()
        if word not in allowed:
            raise InvalidRequest(f"option {name}={text}: one of {', '.join(allowed)}")
        return allowed[word]

    def number(self, name: str, default: int, *, at_least: int = 1) -> int:
        """A whole number."""
        found = self.text(name)
        if found is None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", found.strip()) or int(found) < at_least:
            raise InvalidRequest(f"option {name}={found}: a number from {at_least} on")
        return int(found)

    def names(self, name: str) -> tuple[str, ...]:
        """Words separated by commas; empty where not given."""
        words = (word.strip() for word in (self.text(name) or "").split(","))
        return tuple(word for word in words if word)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The options of a prefix, in lower case and without it."""
        given = self._given.items()
        return {name.removeprefix(prefix): text for name, text in given if name.startswith(prefix)}

    def json(self, name: str) -> dict[str, object]:
        """A JSON object."""
        text = self.text(name)
        assert text is not None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"option {name}={text}: not JSON: {error}") from error
        if not isinstance(found, dict):
            meaning = (READ_OPTIONS | WRITE_OPTIONS)[name]
            raise InvalidRequest(f"option {name}={text}: {meaning}")
        return found


def read_serdes(options: Options) -> dict[str, str]:
    """Names of serializers of the columns `key` and `value`, where `keyAs` and `valueAs` are given.

    Raises:
        InvalidRequest: There is none of that name.
    """
    allowed = {name: name for name in SERDE_NAMES}
    return {
        column: options.choice(option, allowed, "bytes")
        for column, option in (("key", "keyAs"), ("value", "valueAs"))
        if options.text(option) is not None
    }


def nearest(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that nobody knows, and what there is."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    return f"{hint}there are: {', '.join(names.values())}"
