"""Plan of a mirror: which source topics go into which target topics.

This module checks the options and chooses the topics (`plan_mirror`). It also has the names of the
checkpoint's files, and the state in `mirror.json` (`MirrorState`). `places` reads the sources and
the target. In this module, only `read_state` and `MirrorState.save` do I/O.

Topics are either named or found by a pattern. Topics found by a pattern are numbered after the
named topics, in the order in which they were found.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import (
    Final,
    Unpack,
)

from tidelog.arguments import choice
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.jobs.mirror.options import TOPIC_WORD, MirrorOptions
from tidelog.jobs.offset_map import OffsetMap, Partitioning
from tidelog.jobs.options import check_passed_on, check_sink_options, takes_options
from tidelog.jobs.progress_file import Json, ProgressFile
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.places import Place, as_place
from tidelog.storage.files import check_topic_name
from tidelog.types import IsolationLevel

PROGRESS_FILE: Final = ProgressFile(job="a mirror", version=1)

# Maximum number of topics in the title of a query.
TITLE_TOPICS: Final = 3

# Source options that a user may set. A restart may change the values of these options: a repeated
# task still writes the same records in the same order. Exception: `failOnDataLoss` (see
# `_OF_MIRROR_TO_BROKERS`).
_SOURCE_OPTIONS: Final = (
    *("kafka.*", "store.*", "kafkaConsumer.pollTimeoutMs", "groupIdPrefix"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "readUntil", "commitGroup"),
    "failOnDataLoss",
    *("maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
)

_OF_MIRROR: Final = (
    dict.fromkeys(
        ("path", "kafka.bootstrap.servers"),
        "would change the place from which the mirror reads: leave the option out, or give the"
        " other place as a source",
    )
    | dict.fromkeys(
        ("subscribe", "topic", "subscribePattern", "assign"),
        "is set by the mirror: use the options topics or pattern",
    )
    | dict.fromkeys(
        (
            "startingOffsets",
            "startingTimestamp",
            "startingOffsetsByTimestamp",
            "startingOffsetsByTimestampStrategy",
        ),
        "is set by the mirror: use the option start",
    )
    | dict.fromkeys(
        ("minPartitions", "maxRecordsPerPartition", "splitBytes"),
        "would change the records that a task writes, but a repeated task must write the same"
        " records in the same order: leave the option out",
    )
    | dict.fromkeys(
        ("columns", "includeHeaders", "includeAppendTimestamp"),
        "is set by the mirror, which copies whole records: leave the option out",
    )
    | dict.fromkeys(
        ("keyAs", "valueAs", "mode"), "would change what is copied: convert records by a transform"
    )
    | dict.fromkeys(
        ("isolation", "kafka.isolation.level"), "is set by the mirror: use the option isolation"
    )
    | {
        "maxOffsetsPerTrigger": "is set by the mirror: use the option batch_records",
    }
)

# If the target is a cluster, a repeated batch skips the tasks that have already written their rows.
# A task is identified only by its index in the batch. If records of a partition were deleted
# between the attempts, the rows would be divided among the tasks in another way. Then a task with
# unwritten rows could have the index of a task that has already written, and would be skipped.
_OF_MIRROR_TO_BROKERS: Final = {
    "failOnDataLoss": "would change the records that a repeated task writes to brokers: leave the"
    " option out; if records were lost, begin with a new checkpoint and start='latest'"
}

# Options of the sink that determine where a repeated batch looks for the markers of its first
# attempt.
_MARKER_OPTIONS: Final = {name.lower(): name for name in ("markerTopic", "transactionalIdPrefix")}

# Internal topics of brokers and of writers. Patterns never match these topics.
_INTERNAL: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
    "tidelog-spark-markers",
)


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """Topics of one source.

    Attributes:
        place: Directory or cluster with the topics.
        topics: Mapping from the names of topics at the source to their names at the target.
        pattern: Regular expression for whole names. The mirror also copies each topic whose name
            matches, even a topic that is created later. Internal topics of brokers never match.
            None if there is no pattern.
        name: Name at the target for topics found by the pattern; `{topic}` in it is replaced by the
            topic's name.
    """

    place: Place
    topics: Mapping[str, str] = field(default_factory=dict)
    pattern: str | None = None
    name: str = TOPIC_WORD

    @property
    def expression(self) -> str | None:
        """Regular expression for the names of copied topics; None if the source has no pattern."""
        if self.pattern is None:
            return None
        named = "".join(f"|{re.escape(topic)}" for topic in self.topics)
        internal = "|".join(map(re.escape, _INTERNAL))
        return f"(?!(?:{internal})$)(?:{self.pattern}){named}"

    def matches(self, names: Iterable[str]) -> list[str]:
        """Return the names of topics that match the pattern and are not in `topics`, sorted."""
        if self.expression is None:
            return []
        rule = re.compile(self.expression)
        return sorted(name for name in names if name not in self.topics and rule.fullmatch(name))

    def question(self) -> list[object]:
        """Return the values that a restart must not change, in a form for JSON."""
        request: list[object] = [str(self.place), sorted(self.topics.items())]
        return request if self.pattern is None else [*request, self.pattern, self.name]


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A source topic and its target topic.

    Attributes:
        source: Index of the source in the plan.
        topic: Name at the source.
        target: Name at the target.
    """

    source: int
    topic: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """Plan of a mirror: sources, target and how records are copied.

    Attributes:
        sources: The sources with their topics.
        target: Directory or cluster that records are copied to.
        partitioning: KEPT if records keep the number of their partition, KEY if a record's key
            chooses its partition, ANY if a transform chooses the partition in the column
            `targetPartition`.
        start: Where a new mirror starts, `earliest` or `latest`.
        isolation: READ_COMMITTED copies up to the last stable offset, without records of aborted
            transactions.
        pattern_pairs: Pairs of the topics found by patterns, in the order in which they were found.
        markers: Options of the sink that determine where a repeated batch finds its markers.
    """

    sources: tuple[MirrorSource, ...]
    target: Place
    partitioning: Partitioning = Partitioning.KEPT
    start: str = "earliest"
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    pattern_pairs: tuple[Pair, ...] = ()
    markers: Mapping[str, str] = field(default_factory=dict)

    @property
    def named(self) -> list[Pair]:
        """Pairs of the topics that were named, not found by a pattern."""
        return [
            Pair(number, topic, target)
            for number, source in enumerate(self.sources)
            for topic, target in source.topics.items()
        ]

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of topics, in the order of their numbers in an offset map."""
        return [*self.named, *self.pattern_pairs]

    @property
    def title(self) -> str:
        """Name of the query and its jobs in Spark's UI."""
        patterns = [each.pattern for each in self.sources if each.pattern is not None]
        names = [*dict.fromkeys([*(pair.topic for pair in self.named), *patterns])]
        more = f" and {len(names) - TITLE_TOPICS} more" if len(names) > TITLE_TOPICS else ""
        return f"mirror of {', '.join(names[:TITLE_TOPICS])}{more} to {self.target}"

    @property
    def has_patterns(self) -> bool:
        """Whether any source has a pattern. If so, the mirror may find more topics later."""
        return any(source.pattern is not None for source in self.sources)

    def matches(self, number: int, topics: Iterable[str]) -> list[Pair]:
        """Return pairs for topics that match the pattern of a source and are not copied yet.

        Args:
            number: Index of the source.
            topics: Names of all topics of the source.

        Raises:
            InvalidTopic: The name of a topic at the target is not valid.
        """
        source = self.sources[number]
        copied = {pair.topic for pair in self.pattern_pairs if pair.source == number}
        new = [topic for topic in source.matches(topics) if topic not in copied]
        pairs = [Pair(number, topic, source.name.replace(TOPIC_WORD, topic)) for topic in new]
        for pair in pairs:
            check_topic_name(pair.target)
        return pairs

    def with_pattern_pairs(self, pairs: Iterable[Pair]) -> "MirrorPlan":
        """Return the plan with more topics found by patterns, after the existing topics."""
        return replace(self, pattern_pairs=(*self.pattern_pairs, *pairs))

    @property
    def targets(self) -> list[str]:
        """Names of the target topics, sorted."""
        return sorted({pair.target for pair in self.pairs})

    def question(self) -> dict[str, object]:
        """Return the values that a restart must not change; client settings are left out."""
        return {
            "sources": [source.question() for source in self.sources],
            "target": str(self.target),
            "partitions": self.partitioning.value,
            "isolation": self.isolation.name.lower(),
            "markers": dict(self.markers),
        }


@takes_options(MirrorOptions, partitions=Partitioning)
def plan_mirror(
    sources: Sequence[Place | str | MirrorSource],
    topics: Iterable[str] | Mapping[str, str],
    target: Place | str,
    **options: Unpack[MirrorOptions],
) -> MirrorPlan:
    """Return the plan of a mirror.

    Args:
        sources: Directories or clusters from which `topics` are copied; or `MirrorSource`, each
            with its own topics.
        topics: Names of topics; or a mapping from names to names at the target.
        target: Directory or cluster that records are copied to.
        **options: Options, see `MirrorOptions`.

    Raises:
        InvalidRequest: No topic is given; a pattern is invalid; a place is given twice; a topic
            would be copied to itself; the target is an object store; or an option for the sources
            or the sink is not supported, or is set by the mirror itself.
        InvalidTopic: A name at the target is invalid.
    """
    renames = dict(topics) if isinstance(topics, Mapping) else {name: name for name in topics}
    pattern, name = options["pattern"], options["name"]
    check_sink_options("sink_options", options["sink_options"])
    sink = {name.lower(): text for name, text in (options["sink_options"] or {}).items()}
    plan = MirrorPlan(
        sources=tuple(
            one
            if isinstance(one, MirrorSource)
            else MirrorSource(as_place(one), renames, pattern, name)
            for one in sources
        ),
        target=as_place(target),
        partitioning=Partitioning(options["partitions"]),
        start=options["start"],
        isolation=choice(IsolationLevel, options["isolation"], "isolation"),
        markers={name: sink[low] for low, name in _MARKER_OPTIONS.items() if low in sink},
    )
    refused = _OF_MIRROR | (_OF_MIRROR_TO_BROKERS if plan.target.is_broker else {})
    check_passed_on("source_options", options["source_options"], _SOURCE_OPTIONS, refused)
    _check(plan)
    return plan


def _check(plan: MirrorPlan) -> None:
    if not plan.pairs and not plan.has_patterns:
        raise InvalidRequest("nothing to mirror: give at least one source and one of its topics")
    if not plan.target.is_broker and "://" in plan.target.address:
        raise InvalidRequest(
            f"{plan.target}: object stores are read, not written to; name a directory, and let"
            " `tidelog tier` copy its segments to the store"
        )
    names = [str(source.place) for source in plan.sources]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidRequest(
                f"the source {name} is given twice; give it once, with all of its topics"
            )
    for pair in plan.pairs:
        check_topic_name(pair.target)
        if names[pair.source] == str(plan.target) and pair.topic == pair.target:
            raise InvalidRequest(
                f"{pair.topic} of {names[pair.source]} would be copied into itself: give it another"
                " name at the target (--rename TOPIC=NAME)"
            )
    for source in plan.sources:
        _check_pattern(source, plan.target)


def _check_pattern(source: MirrorSource, target: Place) -> None:
    if source.pattern is None:
        return
    try:
        re.compile(source.pattern)
    except re.error as error:
        raise InvalidRequest(
            f"pattern {source.pattern!r} is not a valid regular expression: {error}"
        ) from error
    if str(source.place) == str(target):
        raise InvalidRequest(
            f"pattern {source.pattern}: source and target are the same place, so the pattern would"
            " also match the copies; name the topics"
        )
    if internal := sorted(source.topics.keys() & set(_INTERNAL)):
        raise InvalidRequest(
            f"{internal[0]} is an internal topic, which patterns never match: mirror it separately"
        )
    check_topic_name(source.name.replace(TOPIC_WORD, "t"))


def excluding(pattern: str, excluded: Iterable[str]) -> str:
    """Return a regular expression for whole names that match `pattern`.

    Names that match an expression in `excluded` don't match the result.
    """
    joined = "|".join(f"(?:{one})" for one in excluded)
    return f"(?!(?:{joined})$)(?:{pattern})" if joined else pattern


def read_renames(
    texts: Iterable[str],
    places: Sequence[Place],
    topics: Sequence[str],
    *,
    pattern: str | None = None,
    name: str = TOPIC_WORD,
) -> list[MirrorSource]:
    """Return sources for the places, with topics renamed as the texts specify.

    Args:
        texts: `TOPIC=NAME` for all places, or `PLACE/TOPIC=NAME` for one place.
        places: Directories and clusters of the sources.
        topics: Topics that are copied from each place.
        pattern: Regular expression for topics that are copied from each place, too.
        name: Name at the target for topics found by the pattern.

    Raises:
        InvalidRequest: A text has another form, or names a topic or place that is not copied.
    """
    renames = [{topic: topic for topic in topics} for _ in places]
    for text in texts:
        old, equals, new = text.partition("=")
        where, slash, topic = old.rpartition("/")
        if not (equals and topic and new):
            raise InvalidRequest(f"rename {text!r}: write TOPIC=NAME, or PLACE/TOPIC=NAME")
        if topic not in topics:
            raise InvalidRequest(f"rename {text}: {topic} is not among the topics that are copied")
        numbers = [n for n, place in enumerate(places) if not slash or str(place) == where]
        if not numbers:
            raise InvalidRequest(f"rename {text}: {where} is not a source of this mirror")
        for number in numbers:
            renames[number][topic] = new
    return [
        MirrorSource(place, names, pattern, name)
        for place, names in zip(places, renames, strict=True)
    ]


# -- in the checkpoint ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """State of a mirror in its checkpoint, in addition to Spark's own files.

    Attributes:
        mirror_id: Id of the mirror at the target, as 32 hexadecimal digits.
        question: Result of `MirrorPlan.question`: the values that a restart must not change.
        starts: Start offsets by pair and partition, `[[pair, partition, offset], ...]`.
    """

    mirror_id: str
    question: Mapping[str, object]
    starts: tuple[tuple[int, int, int], ...]

    def with_starts(self, offset_map: OffsetMap) -> "MirrorState":
        """Return the state, plus starts from the map for partitions that were added later."""
        partitions = {(number, partition) for number, partition, _ in self.starts}
        later = tuple(
            (name.source, name.partition, copied.start)
            for name, copied in sorted(offset_map.copied.items())
            if name not in partitions
        )
        return replace(self, starts=(*self.starts, *later))

    def ensure_same_request(self, plan: MirrorPlan) -> None:
        """Raise InvalidRequest if the plan's `question` differs from this state's `question`."""
        now = json.loads(json.dumps(plan.question()))
        for name in sorted(self.question.keys() | now.keys()):
            if self.question.get(name) != now.get(name):
                raise InvalidRequest(
                    f"the checkpoint belongs to another mirror: {name} was"
                    f" {_text(self.question.get(name))}, now {_text(now.get(name))}; give the"
                    " same value, or another checkpoint"
                )

    def save(self, env: Env, checkpoint: str) -> None:
        """Write the state to a checkpoint durably; raises OSError."""
        fields = {
            "mirror_id": self.mirror_id,
            "question": dict(self.question),
            "starts": [list(start) for start in self.starts],
        }
        PROGRESS_FILE.write(env.files, f"{checkpoint}/{STATE_FILE}", fields)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_state(env: Env, checkpoint: str) -> MirrorState | None:
    """Read the state of a checkpoint; None for a new checkpoint.

    Raises:
        CorruptFile, UnsupportedVersion: The state can't be read.
    """
    return PROGRESS_FILE.read(env.files, f"{checkpoint}/{STATE_FILE}", _state)


def _state(fields: Mapping[str, Json]) -> MirrorState:
    return MirrorState(
        mirror_id=str(fields["mirror_id"]),
        question=dict(fields["question"]),
        starts=tuple((int(a), int(b), int(c)) for a, b, c in fields["starts"]),
    )


STATE_FILE: Final = "mirror.json"
MAP_FILE: Final = "offsets.map"
SPARK_DIR: Final = "spark"
