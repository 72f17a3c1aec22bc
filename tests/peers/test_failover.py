"""A group moves from one real Kafka 4.3 to another, and misses nothing."""

import io
from pathlib import Path

import pytest
from tests.peers.failover_pair import GROUP, START, Pair, Traffic, delete_before
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.either import kafka_fixture
from tests.worlds.kafka.groups import member
from tests.worlds.waiting import with_time

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.env import SystemClock

pytestmark = pytest.mark.kafka
second_broker = kafka_fixture()


@pytest.fixture
def pair(kafka_broker: Broker, second_broker: Broker, request: pytest.FixtureRequest) -> Pair:
    return Pair(kafka_broker, second_broker, f"failover-{abs(hash(request.node.name))}")


def test_the_reordering_of_kip_33_loses_no_message(pair: Pair) -> None:
    """m1 was created before m2. The log of A has m2 first, and the log of B has m1 first."""
    pair.create()
    m1, m2 = 10, 11
    pair.send(pair.a, [*range(10), m2, 12, 13, m1, *range(14, 20)])
    pair.send(pair.b, [*range(10), m1, m2, *range(12, 20)])
    pair.commit(pair.a, 11)  # m2 is consumed, m1 is not
    careless = pair.failover("--max-latency", "0s", "--verify", "--execute")
    assert careless.code == 1
    assert "nothing was committed: 1 record would be missed" in careless.err
    assert careless.starts == {0: 11}
    assert careless.verdict["examples"] == [
        {
            "partition": 0,
            "offset": 10,
            "time": "2023-11-14T22:13:30.000Z",
            "time_ms": START + m1 * 1_000,
        }
    ]
    assert pair.committed(pair.b) < 0
    safe = pair.failover("--max-latency", "3s", "--verify", "--execute")
    assert safe.code == 0, safe.err
    # On B the group starts at the records that were created 3 s before m2. So it reads three
    # consumed records again: 8, 9 and m2 itself.
    assert safe.verdict["missed"] == 0
    assert safe.verdict["duplicates"] == 3
    assert safe.starts == {0: 8}
    assert pair.committed(pair.b) == 8


@pytest.mark.parametrize("from_kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("to_kind", ["CreateTime", "LogAppendTime"])
def test_append_times_serve_on_either_side(pair: Pair, from_kind: str, to_kind: str) -> None:
    """Records are sent now, in different orders to A and B, with create times in the past."""
    pair.a.create_topic(pair.topic, message_timestamp_type=from_kind)
    pair.b.create_topic(pair.topic, message_timestamp_type=to_kind)
    now = SystemClock().now_ms()
    pair.created = {number: now - 5_000 + 100 * number for number in range(40)}
    pair.send(pair.a, list(range(20)))
    pair.send(pair.b, list(reversed(range(20))))
    pair.send(pair.a, list(reversed(range(20, 40))))
    pair.send(pair.b, list(range(20, 40)))
    pair.commit(pair.a, 25)
    result = pair.failover("--max-latency", "1h", "--verify", "--execute")
    assert result.code == 0, result.err
    verdict = result.verdict
    both_create = (from_kind, to_kind) == ("CreateTime", "CreateTime")
    assert verdict["compared"] == ("key, create time, value" if both_create else "key, value")
    assert (verdict["unconsumed"], verdict["missed"], verdict["absent"]) == (15, 0, 0)
    # All records were created within the maximum latency (an hour), so the group reads all consumed
    # records again.
    assert (verdict["after"], verdict["duplicates"], verdict["only_on_b"]) == (40, 25, 0)
    assert pair.committed(pair.b) == 0


def test_the_latency_is_measured_at_the_tails(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, list(range(10)))
    pair.send(pair.b, list(range(10)))
    pair.commit(pair.a, 5)
    with Traffic(pair, lag_ms=800):
        seconds, result = pair.sampled(
            lambda found: bool(found.out), "--sample-records", "50", "--verify", least_s=3
        )
    assert result.out, result.err
    margin = result.content["margin"]
    assert isinstance(margin, dict)
    samples = margin["samples"]
    assert [(s["cluster"], s["records"] >= 50, s["for_ms"]) for s in samples] == [
        ("A", True, seconds * 1_000),
        ("B", True, seconds * 1_000),
    ]
    assert margin["measured"] is True
    assert margin["latency_ms"] == max(sample["max_ms"] for sample in samples) >= 400
    assert result.verdict["missed"] == 0


def test_a_latency_that_cant_be_measured_is_refused_with_the_reason(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, [1])
    pair.send(pair.b, [1])
    pair.commit(pair.a, 1)
    code, err = pair.refused("--sample-for", "200ms")
    assert code == 1
    assert f"the latency of {pair.topic} on A can't be measured from 0 records in 0.2 s" in err
    assert "1,000 are needed" in err
    assert "give --max-latency" in err


def test_the_latency_of_stamped_topics_is_read_from_their_batches(pair: Pair) -> None:
    """Batches have append times, so latencies of records from before the measurement are exact."""
    pair.create("LogAppendTime")
    now = SystemClock().now_ms()
    pair.created = {number: now - 10 * number for number in range(100)}
    pair.send(pair.a, list(range(100)))
    pair.send(pair.b, list(range(100)))
    pair.commit(pair.a, 50)
    result = pair.failover("--sample-for", "5m", "--sample-records", "100", "--verify")
    margin = result.content["margin"]
    assert isinstance(margin, dict)
    appended = {name: pair.append_times(b) for name, b in (("A", pair.a), ("B", pair.b))}
    for sample in margin["samples"]:
        times = appended[sample["cluster"]]
        largest = max(times[number] - pair.created[number] for number in range(100))
        assert (sample["is_exact"], sample["records"]) == (True, 100)
        assert sample["max_ms"] == largest
    assert result.verdict["missed"] == 0


def test_log_append_time_topics_with_a_password_are_refused_with_the_reason(
    pair: Pair, tmp_path: Path
) -> None:
    pair.create("LogAppendTime")
    pair.send(pair.a, [1])
    pair.send(pair.b, [1])
    pair.commit(pair.a, 1)
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=PLAINTEXT\n")
    said = "its timestamps are append times"
    with Traffic(pair, lag_ms=10):
        _, result = pair.sampled(
            lambda found: said in found.err,
            *("--sample-records", "10", "--from-config", str(settings)),
            least_s=1,
        )
    assert not result.out
    assert result.code == 1
    assert said in result.err


def test_another_number_of_partitions(pair: Pair) -> None:
    """A record can be in any partition of B, so all partitions start at the earliest time."""
    pair.create(on_a=2, on_b=3)
    pair.send(pair.a, list(range(60)))
    pair.send(pair.b, list(range(60)))
    for partition in (0, 1):
        pair.commit(pair.a, 20, partition)
    result = pair.failover("--max-latency", "1s", "--verify")
    assert result.code == 0, result.err
    assert list(result.starts) == [0, 1, 2]
    (topic,) = result.topics
    assert topic["mapping"] == "any"
    assert topic["why"] == f"{pair.topic} has 2 partitions on A and 3 on B"
    assert result.verdict["missed"] == 0


@pytest.mark.parametrize(
    ("on_a", "on_b", "mapping"),
    [
        ("murmur2_random", "murmur2_random", "same"),
        ("consistent_random", "consistent_random", "same"),
        ("murmur2_random", "consistent_random", "any"),
    ],
)
def test_whether_partitions_correspond_is_seen_from_the_keys(
    pair: Pair, on_a: str, on_b: str, mapping: str
) -> None:
    pair.create(on_a=3, on_b=3)
    pair.send(pair.a, list(range(60)), partitioner=on_a)
    pair.send(pair.b, list(range(60)), partitioner=on_b)
    for partition in range(3):
        pair.commit(pair.a, 10, partition)
    result = pair.failover("--max-latency", "1s", "--verify")
    assert result.code == 0, result.err
    (topic,) = result.topics
    assert topic["mapping"] == mapping, topic
    assert result.verdict["missed"] == 0


def test_members_on_b_prevent_it_and_a_dry_run_commits_nothing(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, list(range(10)))
    pair.send(pair.b, list(range(10)))
    pair.commit(pair.a, 5)
    assert pair.failover("--max-latency", "0s").starts == {0: 4}
    assert pair.committed(pair.b) < 0
    with member(pair.b, GROUP + pair.topic, pair.topic):
        code, err = pair.refused("--max-latency", "0s", "--execute")
        assert code == 1
        assert "is active on" in err
        assert "--execute is refused" in pair.failover("--max-latency", "0s").err
    assert pair.committed(pair.b) < 0


def test_a_match_that_kafkas_search_misses_makes_the_plan_start_at_the_beginning(
    pair: Pair,
) -> None:
    """The first segment's only match is below the log start, so a lookup in Kafka finds none."""
    pair.a.create_topic(pair.topic)
    pair.b.create_topic(pair.topic, segment_bytes="1048576")
    late = 1_000
    pair.created = dict.fromkeys(range(100, 700), START)
    pair.send(pair.b, [late])
    # A segment has at most 1 MB, and each half of the records 0.6 MB, so the second half starts a
    # new segment.
    pair.send(pair.b, list(range(100, 400)), size=2_000)
    pair.send(pair.b, list(range(400, 700)), size=2_000)
    pair.send(pair.b, [late + 1, late + 2])
    pair.send(pair.a, [late + 1, late + 2])
    pair.commit(pair.a, 0)
    delete_before(pair.b, pair.topic, 1)
    result = pair.failover("--max-latency", "2s", "--verify")
    assert result.starts == {0: 1}
    (row,) = result.partitions
    assert row["found_by"] == "beginning"
    assert str(row["why"]).startswith("B's search by time found no record, although later")
    assert result.verdict["missed"] == 0


def test_aborted_records_and_markers_are_not_counted(pair: Pair) -> None:
    pair.create()
    pair.transact(pair.a, [[1, 2], [3]], aborted=[90])
    pair.transact(pair.b, [[1], [2, 3]], aborted=[91, 92])
    end = 9
    pair.send(pair.a, [4])
    pair.send(pair.b, [4])
    for position, unconsumed in ((0, 4), (3, 2), (end, 0)):
        pair.commit(pair.a, position)
        result = pair.failover("--max-latency", "1h", "--verify")
        assert result.code == 0, result.err
        verdict = result.verdict
        assert (verdict["unconsumed"], verdict["missed"]) == (unconsumed, 0)
        assert (verdict["after"], verdict["duplicates"]) == (4, 4 - unconsumed)


def test_a_stated_time_does_without_a(pair: Pair) -> None:
    pair.create()
    pair.send(pair.b, list(range(10)))
    out = io.StringIO()
    code = run(
        [
            *("failover", "--group", "g", "--to", pair.b.bootstrap, "--topic", pair.topic),
            *("--at", str(START + 7_000), "--max-latency", "2s", "-o", "csv"),
        ],
        Surroundings(stdout=out, stderr=io.StringIO()),
    )
    assert code == 0
    heading, row = out.getvalue().splitlines()
    assert dict(zip(heading.split(","), row.split(","), strict=True))["new_offset"] == "5"


def test_a_cluster_that_does_not_exist_is_named(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, [1])
    pair.commit(pair.a, 0)
    gone = Pair(pair.a, Nobody(), pair.topic)  # type: ignore[arg-type] # without a cluster
    said = "127.0.0.1:1: could not"
    _, (code, err) = with_time(
        lambda seconds: gone.refused("--max-latency", "1s", "--timeout", f"{seconds}s"),
        lambda told: said in told[1],  # the message names the missing cluster, not A
        least_s=1,
    )
    assert code == 1
    assert said in err


class Nobody:
    """Stands for a broker that does not exist."""

    bootstrap = "127.0.0.1:1"
