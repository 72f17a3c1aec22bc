"""Valid and refused options of a mirror, and the state in its checkpoint."""

import json
from pathlib import Path

import pytest

from tidelog.env import Env
from tidelog.errors import CorruptFile, InvalidRequest, InvalidTopic, UnsupportedVersion
from tidelog.jobs.mirror.plan import (
    STATE_FILE,
    MirrorPlan,
    MirrorSource,
    MirrorState,
    Pair,
    plan_mirror,
    read_renames,
    read_state,
)
from tidelog.jobs.mirror.run import source_options
from tidelog.jobs.offset_map import Partitioning
from tidelog.spark.places import Place
from tidelog.spark.stream_options import read_stream_options
from tidelog.types import IsolationLevel

EAST, NORTH, DATA = Place.parse("kafka://east:9092"), Place.parse("kafka://north:9092"), "data"


def plan(**more: object) -> MirrorPlan:
    given: dict[str, object] = {
        "sources": [EAST, DATA],
        "topics": {"orders": "all", "bills": "bills"},
        "target": "kafka://west:9092",
        "checkpoint": "m",
    } | more
    return plan_mirror(**given)  # type: ignore[arg-type] # options by name


class TestPlan:
    def test_pairs_are_numbered_by_place_and_topic(self) -> None:
        found = plan()
        assert found.pairs == [
            Pair(0, "orders", "all"),
            Pair(0, "bills", "bills"),
            Pair(1, "orders", "all"),
            Pair(1, "bills", "bills"),
        ]
        assert found.targets == ["all", "bills"]

    def test_its_title_names_topics_and_target(self) -> None:
        assert plan().title == "mirror of orders, bills to kafka://west:9092"
        assert plan(topics=["a", "b", "c", "d", "e"]).title == (
            "mirror of a, b, c and 2 more to kafka://west:9092"
        )
        patterns = plan(topics=["a"], pattern="east.*").title
        assert patterns == "mirror of a, east.* to kafka://west:9092"

    def test_a_source_may_have_topics_of_its_own(self) -> None:
        found = plan(sources=[EAST, MirrorSource(NORTH, {"orders": "north"})], topics=["orders"])
        assert [pair.target for pair in found.pairs] == ["orders", "north"]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"sources": []}, "nothing to mirror"),
            ({"topics": []}, "nothing to mirror"),
            ({"target": "s3://bucket/logs"}, "object stores are read, not written to"),
            ({"sources": [EAST, EAST]}, "the source kafka://east:9092 is given twice"),
            ({"target": EAST, "topics": ["bills"]}, "bills of kafka://east:9092 would be copied"),
        ],
    )
    def test_invalid_plans_are_refused(self, more: dict[str, object], said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            plan(**more)

    def test_a_name_that_no_topic_can_have(self) -> None:
        with pytest.raises(InvalidTopic, match="a/b"):
            plan(topics={"orders": "a/b"})

    def test_within_one_place_a_copy_needs_another_name(self) -> None:
        assert plan(sources=[DATA], target=DATA, topics={"orders": "copy"}).targets == ["copy"]


class TestRenames:
    places = (EAST, NORTH)

    def test_renames_apply_to_all_places_or_to_one(self) -> None:
        texts = ["orders=all", "kafka://north:9092/bills=north.bills"]
        one, two = read_renames(texts, self.places, ["orders", "bills"])
        assert one.topics == {"orders": "all", "bills": "bills"}
        assert two.topics == {"orders": "all", "bills": "north.bills"}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("orders", "write TOPIC=NAME, or PLACE/TOPIC=NAME"),
            ("=x", "write TOPIC=NAME"),
            ("order=x", "order is not among the topics"),
            ("kafka://south:1/orders=x", "kafka://south:1 is not a source of this mirror"),
        ],
    )
    def test_invalid_renames_are_refused(self, text: str, said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            read_renames([text], self.places, ["orders"])


class TestReading:
    """The options that a mirror passes to its streams are valid."""

    state = MirrorState(mirror_id="f" * 32, question={}, starts=((0, 0, 5), (0, 1, 6), (2, 0, 7)))

    @pytest.mark.parametrize("target", ["kafka://west:9092", "elsewhere"])
    def test_source_options_are_valid_for_every_kind_of_place(self, target: str) -> None:
        asked = plan(target=target)
        broker, directory = (
            read_stream_options(source_options(asked, number, self.state, batch_records=7))
            for number in (0, 1)
        )
        assert broker.source.topics == directory.source.topics == ("orders", "bills")
        assert (broker.limits.max_offsets, directory.limits.max_offsets) == (7, 7)
        assert directory.source.isolation is IsolationLevel.READ_COMMITTED
        assert "createTimestamp" in directory.source.columns
        assert "createTimestamp" not in broker.source.columns
        # If the target is a broker, each partition is copied by one task, which keeps the order.
        assert (directory.source.split_bytes > 1 << 50) == asked.target.is_broker

    def test_from_the_end_the_very_offsets_are_named(self) -> None:
        asked = plan(start="latest")
        found = source_options(asked, 0, self.state, batch_records=7)
        assert json.loads(found["startingOffsets"]) == {"orders": {"0": 5, "1": 6}}
        assert (
            source_options(plan(), 0, self.state, batch_records=7)["startingOffsets"] == "earliest"
        )


class TestPassedOn:
    """Options that users may add to sources and sink, and options that the mirror sets itself."""

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("minPartitions", "but a repeated task must write the same records in the same order"),
            ("splitbytes", "would change the records that a task writes"),
            ("maxRecordsPerPartition", "would change the records that a task writes"),
            ("startingOffsets", "use the option start"),
            ("columns", "which copies whole records"),
            ("subscribe", "use the options topics or pattern"),
            ("kafka.bootstrap.servers", "or give the other place as a source"),
            ("kafka.isolation.level", "use the option isolation"),
            ("maxOffsetsPerTrigger", "use the option batch_records"),
            ("valueAs", "convert records by a transform"),
            ("failOnDataLoss", "records that a repeated task writes to brokers"),
            ("kafkaConsumer.pollTimeout", r"not supported; use one of kafka\.\*, store\.\*, "),
        ],
    )
    def test_a_source_keeps_what_decides_the_rows(self, name: str, told: str) -> None:
        with pytest.raises(InvalidRequest, match=f"source_options: option {name} .*{told}"):
            plan(source_options={name: "1"})

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("path", "would change the place to which the job writes: leave"),
            ("topic", "would change the place to which the job writes"),
            ("createPartitions", "leave the option out, and use the job's option create"),
            ("createConfig", "leave the option out, and use the job's option config"),
            ("txnAppId", "to detect repeated writes"),
            ("batchByte", r"not supported; use one of kafka\.\*, compression, batchBytes"),
        ],
    )
    def test_a_sink_keeps_its_place_and_its_number(self, name: str, told: str) -> None:
        with pytest.raises(InvalidRequest, match=f"sink_options: option {name} .*{told}"):
            plan(sink_options={name: "1"})

    def test_settings_of_clients_are_passed_on(self) -> None:
        source = {"kafka.security.protocol": "SSL", "kafkaconsumer.polltimeoutms": "9"}
        sink = {"kafka.linger.ms": "5", "compression": "zstd", "batchBytes": "9"}
        assert plan(source_options=source, sink_options=sink).question() == plan().question()
        plan(target="elsewhere", source_options={"failOnDataLoss": "false"})

    def test_a_restart_has_the_markers_of_before(self) -> None:
        sink = {"markertopic": "marks"}
        question = json.loads(json.dumps(plan(sink_options=sink).question()))
        state = MirrorState(mirror_id="f" * 32, question=question, starts=())
        state.ensure_same_request(plan(sink_options=sink))
        for other in ({"markerTopic": "others"}, None):
            with pytest.raises(
                InvalidRequest, match=r"markers was .*marks.*, now .*; give the same"
            ):
                state.ensure_same_request(plan(sink_options=other))


class TestState:
    state = MirrorState(
        mirror_id="f" * 32, question=json.loads(json.dumps(plan().question())), starts=((0, 1, 9),)
    )

    def test_a_saved_state_is_read_back(self, tmp_path: Path) -> None:
        assert read_state(Env(), str(tmp_path)) is None
        self.state.save(Env(), str(tmp_path))
        assert read_state(Env(), str(tmp_path)) == self.state

    def test_the_same_question_continues(self, tmp_path: Path) -> None:
        self.state.ensure_same_request(plan())
        secret = Place.parse("kafka://east:9092", client={"sasl.password": "new"})
        self.state.ensure_same_request(plan(sources=[secret, DATA]))
        self.state.save(Env(), str(tmp_path))
        assert "new" not in (tmp_path / STATE_FILE).read_text()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"sources": [DATA, EAST]}, "sources was"),
            ({"topics": ["orders", "bills"]}, "sources was"),
            ({"target": "elsewhere"}, "target was kafka://west:9092, now elsewhere"),
            ({"partitions": Partitioning.KEY}, "partitions was kept, now key"),
        ],
    )
    def test_another_question_is_refused(self, more: dict[str, object], said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            self.state.ensure_same_request(plan(**more))

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b"[]", b"{}", b'{"version": 1}', b"\xff", b"[" * 100_000),
            b'{"version": 1, "mirror_id": "", "question": {}, "starts": [[0, 0, Infinity]]}',
        ],
    )
    def test_damage_is_named(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / STATE_FILE).write_bytes(data)
        with pytest.raises(CorruptFile, match="not the state of a mirror") as caught:
            read_state(Env(), str(tmp_path))
        assert caught.value.path == str(tmp_path / STATE_FILE)

    def test_a_later_version_is_no_damage(self, tmp_path: Path) -> None:
        (tmp_path / STATE_FILE).write_bytes(b'{"version": 2}')
        with pytest.raises(
            UnsupportedVersion, match=rf"{STATE_FILE}: the state of a mirror has version 2"
        ):
            read_state(Env(), str(tmp_path))
