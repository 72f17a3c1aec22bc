"""`count --by key` shows which keys are large, `count --repeated` which records are repeated."""

import pytest
from tests.worlds.command_line import NOW, Cli

from tidelog.types import NewRecord

HOUR = 3_600_000


@pytest.fixture
def skewed(cli: Cli) -> Cli:
    """Create a topic of four keys: `big` has most of the bytes, `often` has most of the records."""
    cli.ok("create", "flights")
    big = [NewRecord(key=b"big", value=b"x" * 1000, timestamp=NOW)]
    often = [NewRecord(key=b"often", value=b"y", timestamp=NOW + n) for n in range(6)]
    rest = [NewRecord(key=key, value=b"z", timestamp=NOW) for key in (b"c", b"d")]
    cli.append(*big, *often, *rest)
    return cli


def test_the_verdict_names_how_many_keys_have_most_bytes(skewed: Cli) -> None:
    result = skewed.ok("count", "flights:0", "--by", "key", "-n", "2")
    assert result.lines == [
        "1 of 4 keys (big) has 96.2% of the bytes; flights:0 has 9 records",
        "KEY               PARTITION  RECORDS  RECORDS SHARE  SIZE  BYTES SHARE",
        "big                       0        1            11%  1 kB        96.2%",
        "often                     0        6            67%  36 B         3.5%",
        "... 2 other keys          -        2            22%   4 B        0.38%",
    ]
    assert result.err == ""


def test_the_order_by_records_is_that_of_the_verdict(skewed: Cli) -> None:
    result = skewed.ok("count", "flights", "--by", "key", "--order", "records")
    assert result.lines[0] == "1 of 4 keys (often) has 67% of the records; flights has 9 records"
    assert [line.split()[0] for line in result.lines[2:]] == ["often", "big", "c", "d"]


def test_the_verdict_names_the_largest_key(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(*(NewRecord(key=b"k%03d" % n, value=b"v" * 96, timestamp=NOW) for n in range(60)))
    cli.append(NewRecord(key=b"k" * 99, value=b"v", timestamp=NOW))
    by_key = ("count", "flights", "--by", "key")
    cli.append(NewRecord(key=b"k007", value=b"", timestamp=NOW))
    assert cli.ok(*by_key, "-n", "3").lines[0] == (
        "3 of 61 keys have 5.0% of the bytes (largest: k007, 1.7%); flights has 62 records"
    )
    assert cli.ok(*by_key, "-n", "3", "--order", "records").lines[0] == (
        "3 of 61 keys have 6.5% of the records (most frequent: k007, 3.2%); flights has 62 records"
    )
    cli.append(NewRecord(key=b"k" * 99, value=b"v", timestamp=NOW))
    assert (
        cli.ok(*by_key, "-n", "3")
        .lines[0]
        .startswith(f"3 of 61 keys have 6.5% of the bytes (largest: {'k' * 39}…, 3.2%); ")
    )


def test_json_has_both_shares(skewed: Cli) -> None:
    result = skewed.ok("count", "flights", "--by", "key", "-n", "1", "-o", "json")
    assert result.objects == [
        {
            "topic": "flights",
            "key": "big",
            "partition": 0,
            "records": 1,
            "records_share": 1 / 9,
            "bytes": 1003,
            "bytes_share": 1003 / 1043,
        }
    ]
    assert "1 of 4 keys (big) has 96.2% of the bytes" in result.err


def test_records_without_a_key_are_named(cli: Cli) -> None:
    cli.ok("create", "flights", "-p", "2")
    for partition in range(2):
        words = ("--value", "v", "--partition", f"{partition}")
        cli.ok("produce", "flights", *words)
    lines = cli.ok("count", "flights", "--by", "key").lines
    assert lines[0] == "no record has a key; flights has 2 records"
    assert lines[2].split()[:3] == ["(null)", "several", "2"]
    cli.append(NewRecord(key=b"k", value=b"v", timestamp=NOW))
    verdict = cli.ok("count", "flights", "--by", "key").lines[0]
    assert verdict.startswith(
        "1 of 1 key (k) has 50% of the bytes; 2 records have no key; flights has"
    )


def test_the_last_line_tells_keys_from_records_without_a_key(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(*[NewRecord(value=b"v" * 9, timestamp=NOW)] * 2)
    cli.append(*(NewRecord(key=b"k%d" % n, value=b"v", timestamp=NOW) for n in range(3)))
    lines = cli.ok("count", "flights", "--by", "key", "-n", "1").lines
    assert lines[0] == (
        "1 of 3 keys (k0) has 11% of the bytes; 2 records have no key; flights has 5 records"
    )
    assert [line.split()[0] for line in lines[2:]] == ["(null)", "k0", "..."]
    assert lines[-1].startswith("... 2 other keys  ")
    few = ("count", "flights", "--by", "key")
    cli.append(*(NewRecord(key=b"k%d" % n, value=b"v" * 99, timestamp=NOW) for n in range(3)))
    two = cli.ok(*few, "-n", "2").lines
    assert [line.split()[0] for line in two[2:]] == ["k0", "k1", "(null)", "..."]
    assert two[-1].startswith("... 1 other key  ")
    assert cli.ok(*few, "-n", "3").lines[-1].startswith("(null)  ")
    rows = cli.ok(*few, "-n", "1", "-o", "json").objects
    assert [row["key"] for row in rows] == ["k0", None]


def test_keys_without_any_byte_have_no_share(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(NewRecord(key=b"", timestamp=NOW))
    lines = cli.ok("count", "flights", "--by", "key").lines
    assert lines[0] == "1 key; flights has 1 record"
    assert lines[2].split() == ["(empty)", "0", "1", "100%", "0", "B", "-"]


def test_a_limit_may_have_any_size(skewed: Cli) -> None:
    huge = ("-n", str(2**70))
    assert len(skewed.ok("count", "flights", "--by", "key", *huge).lines) == 6
    assert len(skewed.ok("count", "flights", "--repeated", "--any-time", *huge).lines) == 3
    for words in ((), ("-o", "parquet"), ("--table",), ("--table", "-o", "arrow")):
        assert skewed.ok("read", "flights", *words, *huge).raw


def test_repeated_records_are_listed(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(*[NewRecord(key=b"a", value=b"x", timestamp=NOW)] * 3)
    cli.append(*[NewRecord(key=b"b", value=b"x", timestamp=NOW)] * 2)
    cli.append(*[NewRecord(key=b"c", value=b"x", timestamp=NOW + n) for n in range(2)])
    cli.variables["COLUMNS"] = "80"
    result = cli.ok("count", "flights", "--repeated")
    assert result.lines == [
        "2 records of 2 keys occur more than once (3 copies); flights has 7 records",
        "KEY  RECORDS  CREATE TIME (UTC)    PARTITION  OFFSET  LAST OFFSET  SIZE",
        "a          3  2023-11-14 22:13:20          0       0            2   6 B",
        "b          2  2023-11-14 22:13:20          0       3            4   4 B",
    ]
    result = cli.ok("count", "flights", "--repeated", "--any-time", "-n", "1", "-o", "json")
    (row,) = result.objects
    assert (row["key"], row["records"], row["last_partition"]) == ("a", 3, 0)
    assert (row["create_time_ms"], row["offset"], row["last_offset"]) == (NOW, 0, 2)
    assert "3 records of 3 keys occur more than once (4 copies)" in result.err


def test_without_repeated_records_the_verdict_says_so(skewed: Cli) -> None:
    result = skewed.ok("count", "flights", "--repeated", "--from", str(NOW - HOUR))
    assert result.lines == [
        "no record occurs more than once; flights has 9 records in this range of timestamps"
    ]
    assert "--any-time compares them, too" in result.err
    result = skewed.ok("count", "flights", "--repeated", "--any-time")
    assert (
        result.lines[0]
        == "1 record of 1 key occurs more than once (5 copies); flights has 9 records"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--repeated", "--by", "key"), "leave out --by or --repeated"),
        (("--any-time",), "add --repeated"),
        (("--order", "bytes"), "add --by key"),
        (("--order", "bytes", "--by", "day"), "add --by key"),
        (("-n", "3"), "--limit is only for --by key and --repeated"),
        (("--key-as", "int64"), "--key-as"),
        (("--repeated", "--zone-cache", "z"), "--zone-cache has no use"),
        (("--by", "key", "--zone-cache", "z"), "--zone-cache has no use"),
    ],
)
def test_contradictory_options_are_refused(skewed: Cli, words: tuple[str, ...], text: str) -> None:
    result = skewed.run("count", "flights", *words)
    assert result.code == 3
    assert text in result.err


@pytest.mark.parametrize("output", ["json", "csv"])
def test_a_key_that_is_no_text_is_named_with_its_place(cli: Cli, output: str) -> None:
    cli.ok("create", "flights")
    cli.append(*[NewRecord(key=b"\xff", value=b"v", timestamp=NOW)] * 2)
    step = "--key-as bytes writes the key of every record as base64"
    for words, place in (
        (("--by", "key"), "flights"),
        (("--repeated",), "flights-0 offset 0"),
    ):
        result = cli.run("count", "flights", *words, "-o", output)
        assert result.code == 1
        assert f"error: {place}: key: 1 byte can't be read as string" in result.err
        assert step in result.err
        assert "/w==" in cli.ok("count", "flights", *words, "-o", output, "--key-as", "bytes").out
        assert "/w==" in cli.ok("count", "flights", *words).out


def test_keys_are_written_in_their_type(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(NewRecord(key=(7).to_bytes(8, "big"), value=b"v", timestamp=NOW))
    result = cli.ok("count", "flights", "--by", "key", "--key-as", "int64", "-o", "json")
    assert result.objects[0]["key"] == 7
