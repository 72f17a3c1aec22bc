"""Commands on a directory or a cluster: how the options choose one of them."""

import io
import socket
from typing import cast

import click
import pytest
from tests.worlds.command_line import NOW, Cli, at
from tests.worlds.kafka.broker import free_port

from tidelog.cli.app import app, run
from tidelog.cli.places import Place, place_options
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.env import ManualClock
from tidelog.errors import ClusterFailure
from tidelog.remote.cluster import Cluster, connect


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """Replace `tidelog topics` by a command that adds its directory or cluster to a list."""
    found: list[Place] = []

    @click.command("topics")
    @place_options
    def note(place: Place) -> None:
        found.append(place)

    monkeypatch.setitem(app.commands, "topics", note)
    for name in ("TIDELOG_DATA", "TIDELOG_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    return found


def call(*arguments: str) -> tuple[int, str]:
    err = io.StringIO()
    return run(["topics", *arguments], Surroundings(stderr=err)), err.getvalue()


def named(place: Place) -> str | None:
    return place.data if place.access is None else place.access.bootstrap


def test_an_option_precedes_the_variables_of_the_environment(
    asked: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("--data", "here")[0] == ExitCode.OK
    assert call("--bootstrap", "b:1", "--timeout", "2s")[0] == ExitCode.OK
    monkeypatch.setenv("TIDELOG_DATA", "there")
    assert call()[0] == ExitCode.OK
    assert call("--bootstrap", "b:2")[0] == ExitCode.OK
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "b:3")
    assert call("--data", "here")[0] == ExitCode.OK
    assert [named(place) for place in asked] == ["here", "b:1", "there", "b:2", "here"]
    assert asked[1].access is not None
    assert asked[1].access.timeout == "2s"


def test_both_are_refused(asked: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    code, err = call("--data", "here", "--bootstrap", "b:1")
    assert code == ExitCode.USAGE
    assert "give one of them" in err
    monkeypatch.setenv("TIDELOG_DATA", "there")
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "b:3")
    assert call()[0] == ExitCode.USAGE
    assert asked == []


@pytest.mark.parametrize("option", ["--command-config", "--timeout"])
def test_options_of_a_cluster_need_bootstrap(asked: list[Place], option: str) -> None:
    code, err = call("--data", "here", option, "5s")
    assert code == ExitCode.USAGE
    assert "apply only with --bootstrap" in err
    assert asked == []


@pytest.fixture
def hours(cli: Cli) -> Cli:
    """Append a record to each of two partitions, at different times."""
    cli.ok("create", "flights", "--partitions", "2", "--config", "retention.ms=-1")
    for partition in range(2):
        cli.append(at(NOW + partition, key=b"k"), partition=partition)
    return cli


def test_read_offsets_and_describe_accept_one_partition(hours: Cli, place: tuple[str, ...]) -> None:
    (record,) = hours.ok("read", "flights:1", "-o", "json", *place).objects
    assert (record["topic"], record["partition"], record["timestamp_ms"]) == ("flights", 1, NOW + 1)
    (record,) = hours.ok("read", "flights:1", "--table", "-o", "json", *place).objects
    assert record["partition"] == 1
    (row,) = hours.ok("offsets", "flights:1", "--at", str(NOW), "-o", "json", *place).objects
    assert (row["partition"], row["offset"]) == (1, 0)
    (topic,) = hours.ok("describe", "flights:1", "-o", "json", *place).objects
    assert (topic["topic"], topic["partitions"]) == ("flights", 2)
    (facts,) = cast("list[dict[str, object]]", topic["partition_facts"])
    assert facts["partition"] == 1


def test_the_target_and_an_option_do_not_both_name_a_partition(hours: Cli) -> None:
    result = hours.run("read", "flights:1", "--partition", "1")
    assert result.code == 3
    assert "flights:1 is one partition already; leave --partition out" in result.err


@pytest.mark.parametrize("words", [("read",), ("describe",), ("offsets", "--at", "earliest")])
def test_a_partition_that_does_not_exist(hours: Cli, words: tuple[str, ...]) -> None:
    result = hours.run(words[0], "flights:2", *words[1:])
    assert result.code == ExitCode.ERROR
    assert result.err.startswith("error: topic flights has partitions 0 to 1, not 2\n")


@pytest.mark.parametrize(
    "command",
    ["topics", "describe flights", "read flights", "produce flights", "groups list", "lag"],
)
def test_a_command_fails_soon_if_all_servers_refuse(command: str) -> None:
    servers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    pauses_s, err, record = list[float](), io.StringIO(), io.BytesIO(b"x\n")
    surroundings = Surroundings(stdin=record, stderr=err, wait=pauses_s.append)
    options = ["--bootstrap", ",".join(servers), "--timeout", "20s"]
    assert run([*command.split(), *options], surroundings) == ExitCode.ERROR
    reasons = "; ".join(
        f"{one} refuses connections; check that a broker is running there" for one in servers
    )
    assert err.getvalue().splitlines() == [
        f"error: {','.join(servers)}: could not connect: {reasons}",
        "hint: check --bootstrap, --command-config and --timeout",
    ]
    assert pauses_s == [0.25, 0.25, 0.25]


def test_a_command_fails_soon_if_no_host_name_can_be_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    err = io.StringIO()
    surroundings = Surroundings(stderr=err, wait=lambda _: None)
    options = ["--bootstrap", "broker.invalid:9092", "--timeout", "20s"]
    assert run(["groups", "list", *options], surroundings) == ExitCode.ERROR
    assert err.getvalue().splitlines()[0] == (
        "error: broker.invalid:9092: could not connect: can't resolve the host name"
        " (Name or service not known)"
    )


def test_slow_failures_to_resolve_a_name_end_at_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, hosts = ManualClock(), list[str]()

    def fail_slowly(host: str, *_: object, **__: object) -> None:
        hosts.append(host)
        clock.advance(15_000)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail_slowly)
    with connect("broker.invalid:9092", timeout_s=20, clock=clock) as cluster:
        cluster.fail_if_refused(lambda _: None)
        with pytest.raises(ClusterFailure, match="can't resolve the host name"):
            cluster.admin()
    assert hosts == ["broker.invalid"] * 2


@pytest.mark.parametrize("command", ["read flights --follow", "lag readers --watch"])
def test_a_command_that_runs_on_keeps_trying_until_its_timeout(command: str) -> None:
    pauses_s, err = list[float](), io.StringIO()
    surroundings = Surroundings(stderr=err, wait=pauses_s.append)
    options = ["--bootstrap", f"127.0.0.1:{free_port()}", "--timeout", "300ms"]
    assert run([*command.split(), *options], surroundings) == ExitCode.ERROR
    assert "could not connect" not in err.getvalue()
    assert pauses_s == []


def test_a_server_may_open_its_port_between_two_attempts() -> None:
    with socket.socket() as starting, connect_cluster(starting) as cluster:
        pauses_s = list[float]()

        def listen(pause_s: float) -> None:
            pauses_s.append(pause_s)
            starting.listen()

        cluster.fail_if_refused(listen)
        cluster.admin()
        starting.close()
        cluster.admin()  # no further attempt: librdkafka reconnects
        assert pauses_s == [0.25]


def connect_cluster(server: socket.socket) -> Cluster:
    """Return a client with two addresses: a port without a server, and the port of `server`."""
    server.bind(("127.0.0.1", 0))
    servers = f"127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:{server.getsockname()[1]}"
    return connect(servers, timeout_s=20)
