"""Commands for users, ACLs, quotas, partitions and deleted records, against a broker."""

import io
import json
import sys
from pathlib import Path

import pytest
from tests.worlds.brokers.logins import SETTINGS
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.command_line import NOW, NOW_ISO, Cli, at

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.env import os_env
from tidelog.remote.administration import accepts_passwords
from tidelog.remote.view import Committed
from tidelog.server.embedded import Broker
from tidelog.types import HOUR_MS, NewRecord, TopicPartition

DAY_MS = 86_400_000
broker = broker_fixture(
    SETTINGS
    | {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    },
)


class Shell:
    """Runs commands on a broker, in this process."""

    knows_counts = False

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.err = ""

    def run(self, line: str, *, stdin: bytes = b"", **variables: str) -> tuple[int, str]:
        out, err = io.StringIO(), io.StringIO()
        surroundings = Surroundings(
            stdin=io.BytesIO(stdin), stdout=out, stderr=err, variables=variables
        )
        code = run([*line.split(), "--bootstrap", self.bootstrap], surroundings)
        self.err = err.getvalue()
        return code, out.getvalue()

    def rows(self, line: str) -> list[dict[str, object]]:
        code, out = self.run(f"{line} -o json")
        assert code == ExitCode.OK, self.err
        return [json.loads(row) for row in out.splitlines()]


@pytest.fixture
def shell(broker: Broker) -> Shell:
    return Shell(broker.bootstrap_servers)


def test_users(shell: Shell, tmp_path: Path) -> None:
    assert shell.rows("users list") == []
    assert shell.err.startswith("note: ")
    assert shell.run("users add alice", TIDELOG_PASSWORD="secret")[0] == ExitCode.OK, shell.err
    assert shell.err == "user alice can log in with scram-sha-512\n"
    file = tmp_path / "password"
    file.write_text("other\nnot a password\n")
    file.chmod(0o600)
    line = f"users add alice --mechanism scram-sha-256 --iterations 5000 --password-file {file}"
    assert shell.run(line)[0] == ExitCode.OK, shell.err
    assert shell.err == "user alice can log in with scram-sha-256\n"
    file.chmod(0o640)
    assert shell.run(line)[0] == ExitCode.OK, shell.err
    assert shell.err.startswith(f"note: {file}: other users of this machine can read it; chmod 600")
    assert shell.run("users add bob --password-file -", stdin=b"pw\n")[0] == ExitCode.OK
    listed = [("alice", "scram-sha-256", 5000), ("alice", "scram-sha-512", 4096)]
    assert [tuple(row.values()) for row in shell.rows("users list")] == [
        *listed,
        ("bob", "scram-sha-512", 4096),
    ]
    assert shell.run("users remove alice")[0] == ExitCode.USAGE
    assert "add --yes" in shell.err
    assert len(shell.rows("users list")) == 3
    assert shell.run("users remove alice --yes")[0] == ExitCode.OK
    assert [row["user"] for row in shell.rows("users list")] == ["bob"]
    assert shell.run("users remove alice --yes")[0] == ExitCode.USAGE
    assert "has no user alice" in shell.err


def test_a_broker_without_logins_and_an_authorizer() -> None:
    with tidelog.broker() as plain:
        shell = Shell(plain.bootstrap_servers)
        assert shell.run("users add alice", TIDELOG_PASSWORD="secret")[0] == ExitCode.OK
        stored, note = shell.err.splitlines()
        assert stored == "stored the scram-sha-512 password of alice"
        assert "alice can't log in yet" in note
        assert "sasl.enabled.mechanisms=SCRAM-SHA-512" in note
        assert shell.rows("acls list") == []
        assert "has no authorizer: every client may do everything" in shell.err


def test_lag_of_all_groups_names_those_without_rights() -> None:
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
    }
    with tidelog.broker(settings=settings) as guarded:
        shell = Shell(guarded.bootstrap_servers)
        assert shell.run("create flights")[0] == ExitCode.OK
        with tidelog.connect(guarded.bootstrap_servers) as remote:
            for group in ("mine", "theirs"):
                remote.cluster.commit(group, {TopicPartition("flights", 0): Committed(0)})
        line = "acls add --principal User:bob --group theirs --operation read"
        assert shell.run(line)[0] == ExitCode.OK, shell.err
        code, out = shell.run("lag -o json")
        assert code == ExitCode.ERROR
        rows = [json.loads(row) for row in out.splitlines()]
        assert [(row["group"], row["state"]) for row in rows] == [
            ("mine", "ok"),
            ("theirs", "not authorized"),
        ]
        assert "note: 1 group (theirs) can't be read: GROUP_AUTHORIZATION_FAILED" in shell.err
        assert shell.run("lag theirs")[0] == ExitCode.ERROR
        assert "GROUP_AUTHORIZATION_FAILED" in shell.err


@pytest.mark.parametrize(
    ("listeners", "protocols", "mechanisms", "accepts"),
    [
        ("PLAINTEXT://:9092", "PLAINTEXT:PLAINTEXT", "SCRAM-SHA-512", False),
        ("A://:1,B://:2", "A:PLAINTEXT, B:SASL_SSL", "PLAIN, SCRAM-SHA-512", True),
        ("A://:1,B://:2", "A:PLAINTEXT,B:SASL_SSL", "PLAIN", False),
        ("A://:1,B://:2", "A:SSL,B:SSL", "SCRAM-SHA-512", False),
        ("A://:1", "B:SSL", "SCRAM-SHA-512", True),
        ("", "", "", True),
    ],
)
def test_listeners_that_accept_passwords(
    listeners: str, protocols: str, mechanisms: str, accepts: bool
) -> None:
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": protocols,
        "sasl.enabled.mechanisms": mechanisms,
    }
    assert accepts_passwords(settings, "scram-sha-512") is accepts


def test_an_unknown_setting_is_named(shell: Shell) -> None:
    for line in ("create planes --config retention=7d", "config flights --set retention=7d"):
        shell.run("create flights")
        assert shell.run(line)[0] == ExitCode.USAGE
        expected = "retention: unknown topic setting; did you mean retention.ms?"
        assert shell.err == f"error: {expected}\n"


@pytest.mark.parametrize("stdin", [b"", b"\n"])
def test_a_password_is_needed(shell: Shell, stdin: bytes) -> None:
    assert shell.run("users add alice --password-file -", stdin=stdin)[0] == ExitCode.USAGE
    assert shell.err == "error: the password of alice is empty\n"
    assert shell.run("users add alice")[0] == ExitCode.USAGE
    assert "set TIDELOG_PASSWORD" in shell.err
    assert shell.rows("users list") == []


def test_a_password_and_a_name_are_utf_8(shell: Shell) -> None:
    refused = shell.run("users add alice --password-file -", stdin=b"hunter2\xff\n")
    assert refused == (ExitCode.USAGE, "")
    assert shell.err == "error: the password of alice is not UTF-8\n"
    assert shell.run("users add alice", TIDELOG_PASSWORD="hunter2\udcff")[0] == ExitCode.USAGE
    assert "hunter2" not in shell.err
    assert shell.run("users add al\udcff", TIDELOG_PASSWORD="pw")[0] == ExitCode.USAGE
    assert shell.err == "error: user al\\udcff: the name is not UTF-8\n"


def test_a_user_logs_in_with_the_password(broker: Broker, shell: Shell, tmp_path: Path) -> None:
    assert shell.run("users add alice", TIDELOG_PASSWORD="secret")[0] == ExitCode.OK
    added = "acls add --principal User:alice --cluster --operation describe"
    assert shell.run(added)[0] == ExitCode.OK, shell.err
    for password, code in (("secret", ExitCode.OK), ("wrong", ExitCode.ERROR)):
        settings = tmp_path / password
        settings.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="alice" password="{password}";\n'
        )
        secured = Shell(f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}")
        line = f"acls list --timeout 3s --command-config {settings}"
        assert secured.run(line)[0] == code, secured.err


def test_acls(shell: Shell) -> None:
    add = "acls add --principal User:alice --operation"
    assert shell.run(f"{add} read --operation write --topic flights")[0] == ExitCode.OK, shell.err
    assert shell.err == "added 2 ACLs\n"
    assert shell.run(f"{add} read --group fl --prefix --host 10.0.0.1")[0] == ExitCode.OK
    assert shell.run(f"{add} describe --cluster --deny")[0] == ExitCode.OK, shell.err
    assert {tuple(row.values()) for row in shell.rows("acls list")} == {
        ("topic", "flights", "literal", "User:alice", "*", "read", "allow"),
        ("topic", "flights", "literal", "User:alice", "*", "write", "allow"),
        ("group", "fl", "prefix", "User:alice", "10.0.0.1", "read", "allow"),
        ("cluster", "kafka-cluster", "literal", "User:alice", "*", "describe", "deny"),
    }
    assert len(shell.rows("acls list --topic flights")) == 2
    assert len(shell.rows("acls list --operation read")) == 2
    assert len(shell.rows("acls list --cluster --permission deny")) == 1
    assert len(shell.rows("acls remove --topic flights")) == 2
    assert shell.err == "note: dry run: would remove 2 ACLs; --yes removes them\n"
    assert len(shell.rows("acls list")) == 4
    assert len(shell.rows("acls remove --topic flights --yes")) == 2
    assert len(shell.rows("acls list")) == 2
    assert shell.rows("acls list --principal User:bob") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("acls remove --yes", "no ACLs selected"),
        ("acls add --principal User:a --operation read", "give the resource"),
        ("acls add --principal alice --operation read --topic t", "write TYPE:NAME"),
        ("acls list --topic t --cluster", "give one of"),
        ("acls list --prefix", "--prefix applies only with"),
        ("quotas set producer_byte_rate=1", "give the clients"),
        ("quotas set producer_byte_rate=x --user a", "must be a number"),
        ("quotas set producer_rate=1 --user a", "did you mean producer_byte_rate?"),
        ("quotas set producer_byte_rate=1 --user a --default-user", "can't be combined"),
        ("quotas set producer_byte_rate=-1 --user a", ": Quota producer_byte_rate must be"),
        ("quotas set producer_byte_rate=0 --user a", ": Quota producer_byte_rate must be"),
    ],
)
def test_invalid_commands_are_usage_errors(shell: Shell, line: str, message: str) -> None:
    assert shell.run(line)[0] == ExitCode.USAGE
    assert message in shell.err
    assert "error 42" not in shell.err
    assert (shell.rows("acls list"), shell.rows("quotas list")) == ([], [])


def test_quotas(shell: Shell) -> None:
    line = "quotas set producer_byte_rate=1048576 request_percentage=50 --user alice"
    assert shell.run(line)[0] == ExitCode.OK, shell.err
    assert shell.err == "user alice: set producer_byte_rate=1048576, set request_percentage=50\n"
    line = "quotas set consumer_byte_rate=1000 --default-user --client-id app"
    assert shell.run(line)[0] == ExitCode.OK, shell.err
    assert {tuple(row.values()) for row in shell.rows("quotas list")} == {
        ("user alice", "producer_byte_rate", 1048576.0),
        ("user alice", "request_percentage", 50.0),
        ("client-id app, default user", "consumer_byte_rate", 1000.0),
    }
    assert shell.run("quotas remove producer_byte_rate --user alice")[0] == ExitCode.OK, shell.err
    assert len(shell.rows("quotas list")) == 2


def test_quotas_need_plain_text(shell: Shell, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=SSL\n")
    assert shell.run(f"quotas list --command-config {settings}")[0] == ExitCode.USAGE
    assert "without TLS and SASL" in shell.err


def records(count: int) -> list[NewRecord]:
    return [at(DAY_MS * day, value=b"%d" % day) for day in range(1, count + 1)]


def test_a_refused_connection_is_no_time_out() -> None:
    shell = Shell("127.0.0.1:1")
    assert shell.run("groups list --timeout 2s")[0] == ExitCode.ERROR
    assert shell.err.splitlines()[0] == (
        "error: 127.0.0.1:1: could not connect: connection refused; check that a broker is running"
        " there"
    )


def commit(broker: Broker, *groups: str) -> None:
    """Commit offset 1 of both partitions of a new topic for each group."""
    with tidelog.connect(broker.bootstrap_servers) as remote:
        remote.create_topic("flights", partitions=2, config={"retention.ms": "-1"})
        for number in range(2):
            remote.append("flights", records(3), partition=number)
        remote.flush()
        for group in groups:
            commits = {TopicPartition("flights", number): Committed(1) for number in range(2)}
            remote.cluster.commit(group, commits)


def test_lag_of_all_groups_requests_each_partition_and_each_group_once(
    broker: Broker, shell: Shell
) -> None:
    commit(broker, "a", "b", "c")

    def requests() -> dict[str, int]:
        return broker.call(
            lambda node: {name: sum(of.seconds.counts) for name, of in node.metrics.apis.items()}
        )

    before = requests()
    assert [row["group"] for row in shell.rows("lag")] == ["a", "a", "b", "b", "c", "c"]
    sent = {name: count - before.get(name, 0) for name, count in requests().items()}
    assert sent["ListOffsets"] == 2  # one for log starts, and one for log ends
    assert sent["ListGroups"] == 1
    assert [sent[name] for name in ("DescribeGroups", "OffsetFetch")] == [3, 3]


def test_lag_of_all_groups_names_a_refused_group(
    broker: Broker, shell: Shell, tmp_path: Path
) -> None:
    commit(broker, "a", "b")
    assert shell.run("users add alice", TIDELOG_PASSWORD="secret")[0] == ExitCode.OK
    for resource in ("--topic flights", "--group a", "--cluster"):
        add = f"acls add --principal User:alice --operation describe {resource}"
        assert shell.run(add)[0] == ExitCode.OK, shell.err
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.username=alice\nsasl.password=secret\n"
    )
    secured = Shell(f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}")
    assert secured.run(f"lag --command-config {settings}")[0] == ExitCode.ERROR
    assert "note: 1 group (b) can't be read: GROUP_AUTHORIZATION_FAILED" in secured.err


def test_partitions_and_deleted_records_of_a_broker(broker: Broker, shell: Shell) -> None:
    assert shell.run("create flights --config retention.ms=-1")[0] == ExitCode.OK, shell.err
    lines = b"".join(b'{"t": "1970-01-%02dT00:00Z"}\n' % (1 + day) for day in range(1, 5))
    produce = "produce flights --from - --format json --time t"
    assert shell.run(produce, stdin=lines)[0] == ExitCode.OK, shell.err
    check_unread(shell)
    check_deletions(shell)
    assert shell.run("partitions flights --to 3")[0] == ExitCode.OK, shell.err
    assert shell.err.splitlines()[0] == "flights has 3 partitions now, 2 more"
    assert shell.run("partitions flights --to 2")[0] != ExitCode.OK
    assert len(shell.rows("offsets flights --at latest")) == 3


def check_unread(shell: Shell) -> None:
    """Check the note of `delete-records` on groups that would lose unread records."""
    days = {"behind": 3, "current": 5, "late": 2, "new": 2, "old": 2, "slow": 2, "torpid": 2}
    for group, day in days.items():
        to = "latest" if day == 5 else f"1970-01-0{day}Z"
        rewind = f"rewind --group {group} --topic flights --to {to} --execute"
        assert shell.run(rewind)[0] == ExitCode.OK, shell.err
    (row,) = shell.rows("delete-records flights --before 1970-01-04Z")
    assert shell.err.splitlines()[2:] == [
        (
            "note: records before 1970-01-04Z that follow a record of this time or later stay;"
            " brokers don't report whether there are any"
        ),
        (
            "note: 6 of 7 consumer groups that committed offsets of flights would lose unread"
            " records: late at most 2, new at most 2, old at most 2, slow at most 2, torpid at"
            " most 2, and 1 more"
        ),
    ]
    unread = {group: max(4 - day, 0) for group, day in days.items()}
    assert row["unread_by_group"] == unread
    code, out = shell.run("delete-records flights:0 --offset 1")
    assert code == ExitCode.OK
    assert out.startswith("dry run: would delete 1 offset (at most 1 record); --yes")
    assert "new at most 1" in shell.err
    assert "behind" not in shell.err
    for line in ("lag behnd", "groups describe behnd", "rewind --group behnd --to earliest"):
        assert shell.run(line)[0] == ExitCode.ERROR
        error, hint = shell.err.splitlines()
        assert error.endswith("has no consumer group behnd; did you mean behind?")
        place = f"--bootstrap {shell.bootstrap}"
        assert hint == f"hint: `tidelog groups list {place}` lists the groups"


def check_deletions(shell: "Shell | LocalShell") -> None:
    """Check `delete-records` on a topic with one record a day, from 1970-01-02 on."""
    before = "delete-records flights --before 1970-01-03T12:00Z"
    (row,) = shell.rows(before)
    assert (row.pop("unread_by_group") is None) is shell.knows_counts
    offsets = {"partition": 0, "start": 0, "new_start": 2, "end": 4, "offsets_deleted": 2}
    assert row == {**offsets, "records_deleted": 2}
    newest = "the newest record that would be deleted is of 1970-01-03 00:00:00 UTC (record clock)"
    verdict = "dry run: would delete 2 records; --yes deletes them"
    assert shell.err.splitlines()[:2] == [verdict, f"note: {newest}"]
    assert shell.run(before)[1].startswith(f"{verdict}\n")
    whole = shell.run("delete-records flights:0 --offset 4")[1]
    amount = "4 records" if shell.knows_counts else "4 offsets (at most 4 records)"
    assert whole.startswith(f"dry run: would delete {amount}, all records of flights; --yes")
    assert shell.rows("offsets flights --at earliest")[0]["offset"] == 0
    assert shell.rows(f"{before} --yes")[0]["new_start"] == 2
    deleted = "the newest deleted record is of 1970-01-03 00:00:00 UTC (record clock)"
    assert shell.err.splitlines()[:2] == ["deleted 2 records of flights", f"note: {deleted}"]
    assert shell.err.count("\n") > 2 or not shell.knows_counts
    assert shell.rows("offsets flights --at earliest")[0]["offset"] == 2
    assert shell.rows(f"{before} --yes")[0]["offsets_deleted"] == 0
    assert shell.rows(before)[0]["offsets_deleted"] == 0
    assert shell.err == "dry run: would delete nothing\n"
    assert shell.rows("delete-records flights:0 --offset 3 --yes")[0]["offsets_deleted"] == 1
    for line, message in (
        ("delete-records flights:0 --offset 9 --yes", "ends at 4"),
        ("delete-records flights --offset 1", "--offset needs one partition"),
        ("delete-records flights:0 --offset 1 --untimed", "--untimed applies only with --before"),
        (
            "delete-records flights:0 --offset 1 --clock append",
            "--clock applies only with --before",
        ),
        ("delete-records flights", "give --before TIME or --offset N"),
    ):
        assert shell.run(line)[0] == ExitCode.USAGE
        assert message in shell.err
    assert shell.run("delete-records flights:7 --offset 1")[0] == ExitCode.ERROR
    assert "topic flights has only partition 0, not 7" in shell.err
    assert shell.rows("delete-records flights --before now --yes")[0]["new_start"] == 4


class LocalShell(Shell):
    """Runs the same commands on a directory, without a broker."""

    knows_counts = True

    def __init__(self, cli: Cli) -> None:
        super().__init__("")
        self._cli = cli

    def run(self, line: str, *, stdin: bytes = b"", **variables: str) -> tuple[int, str]:
        result = self._cli.run(*line.split(), stdin=stdin)
        self.err = result.err
        return result.code, result.out


def test_a_dry_run_states_whether_groups_have_read_the_records(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1", "--partitions", "2")
    cli.append(*records(4))
    deletion = ("delete-records", "flights:0", "--offset", "3")
    committed = "that committed offsets of flights"
    groups = f"consumer groups {committed}"
    assert cli.ok(*deletion).err.splitlines()[-1] == (
        f"note: no consumer group has committed offsets in {cli.data};"
        " --bootstrap HOST:PORT checks the groups of a cluster"
    )

    with tidelog.broker(str(cli.data), settings={"log.initial.task.delay.ms": "3600000"}) as own:
        own_shell = Shell(own.bootstrap_servers)

        def check(note: str) -> None:
            """Delete records at a broker and in a directory; assert that both print `note` last."""
            assert own_shell.run(" ".join(deletion))[0] == ExitCode.OK
            assert own_shell.err.splitlines()[-1] == f"note: {note}"
            assert cli.ok(*deletion).err.splitlines()[-1] == f"note: {note}"

        assert own_shell.run(" ".join(deletion))[0] == ExitCode.OK
        assert (
            own_shell.err.splitlines()[-1]
            == "note: no consumer group has committed offsets of flights"
        )
        rewind = "rewind --group a --topic flights:0 --to earliest --execute"
        assert own_shell.run(rewind)[0] == ExitCode.OK, own_shell.err
        only = f"consumer group a, the only one {committed},"
        check(f"{only} would lose at most 3 unread records")
        for group, readers in (
            ("a", f"{only} has"),
            ("b", f"a and b, the only {groups}, have"),
            ("c", f"a, b and c, the only {groups}, have"),
        ):
            rewind = f"rewind --group {group} --topic flights:0 --to latest --execute"
            assert own_shell.run(rewind)[0] == ExitCode.OK, own_shell.err
            check(f"{readers} read these records")
        # Group d has committed an offset only in partition 1. Possibly it has not read the records
        # of partition 0.
        rewind = "rewind --group d --topic flights:1 --to latest --execute"
        assert own_shell.run(rewind)[0] == ExitCode.OK, own_shell.err
        check(f"1 of 4 {groups} would lose unread records: d at most 3")
        # The deletion itself prints the same note, in the past tense.
        note = f"note: 1 of 4 {groups} lost unread records: d at most 3"
        assert own_shell.run(" ".join((*deletion, "--yes")))[0] == ExitCode.OK
        assert own_shell.err.splitlines()[-1] == note
    cli.append(*records(2))
    assert cli.ok("delete-records", "flights:0", "--offset", "5", "--yes").err.splitlines()[-1] == (
        f"note: 4 of 4 {groups} lost unread records: d at most 2, a at most 1, b at"
        " most 1, c at most 1"
    )


def test_config_says_what_a_broker_would_now_delete(tmp_path: Path) -> None:
    """A broker does not report segments, so the note has an upper bound in offsets."""
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1", "--partitions", "2")
    cli.append(at(NOW - 2 * DAY_MS), at(NOW - 2 * DAY_MS), at(NOW))
    cli.append(at(NOW - 2 * DAY_MS), partition=1)
    with tidelog.broker(str(cli.data), settings={"log.initial.task.delay.ms": "3600000"}) as own:
        shell = Shell(own.bootstrap_servers)

        def note_of(setting: str) -> str:
            assert shell.run(f"config flights --set {setting}")[0] == ExitCode.OK, shell.err
            return shell.err

        age_ms = os_env().clock.now_ms() - NOW + DAY_MS
        note = "note: retention would now delete at most {} by retention.ms\n"
        assert note_of("tidelog.retention.clock=record") == ""
        assert note_of(f"retention.ms={age_ms}") == note.format("3 offsets")
        assert note_of("compression.type=zstd") == ""
        assert note_of(f"retention.ms={age_ms + 10 * DAY_MS}") == ""
        assert note_of("retention.bytes=1000000") == (
            "note: retention would now delete an unknown number of records by retention.bytes\n"
        )
        both = "at most 4 offsets by retention.ms and an unknown number of records by"
        assert both in note_of("retention.ms=1000")
        assert note_of("cleanup.policy=compact") == ""


def test_config_gives_no_bound_if_a_late_record_follows_one_from_the_future(tmp_path: Path) -> None:
    """Retention by the capped clock may then delete records after the first late timestamp."""
    cli = Cli(tmp_path / "data")
    ahead = ("--config", f"message.timestamp.after.max.ms={9 * DAY_MS}")
    cli.ok("create", "flights", "--config", "retention.ms=-1", *ahead)
    cli.clock.set(NOW)
    cli.append(at(NOW + 2 * DAY_MS))
    cli.clock.set(NOW + 2 * DAY_MS)
    cli.append(at(NOW - 9 * DAY_MS))
    with tidelog.broker(str(cli.data), settings={"log.initial.task.delay.ms": "3600000"}) as own:
        age_ms = os_env().clock.now_ms() - NOW - DAY_MS
        shell = Shell(own.bootstrap_servers)
        assert shell.run(f"config flights --set retention.ms={age_ms}")[0] == ExitCode.OK
        assert shell.err == (
            "note: retention would now delete an unknown number of records by retention.ms\n"
        )


def test_a_dry_run_counts_earlier_records_that_stay(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    cli.append(at(DAY_MS), at(3 * DAY_MS), at(DAY_MS), at(4 * DAY_MS), at(DAY_MS))
    line = ("delete-records", "flights", "--before", "1970-01-03Z")
    stay = "2 records before 1970-01-03Z stay, because they follow a record of this time or later"
    assert f"note: {stay}" in cli.ok(*line).err.splitlines()
    assert " stay" not in cli.ok(*line, "--clock", "append", "--untimed").err


def test_damaged_records_are_deleted_without_a_count(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    cli.append(*records(4))
    (file,) = cli.data.glob("flights-0/*.log")
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    result = cli.ok("delete-records", "flights:0", "--offset", "3")
    assert result.out.startswith("dry run: would delete 3 offsets (at most 3 records); --yes")


def test_records_without_an_append_time_are_not_deleted_by_one(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    cli.append(*records(4))
    cli.clock.advance(HOUR_MS)
    for file in (*cli.data.rglob("*.appendtime"), *cli.data.rglob("append-time-checkpoint")):
        file.unlink()
    cli.append(*records(1))
    line = "delete-records flights --clock append --yes --before"
    for before in ("2013-01-01T00:00Z", NOW_ISO, "now"):
        refused = cli.run(*line.split(), before)
        assert refused.code == ExitCode.USAGE, refused.out
        assert "the append time of 4 records before offset" in refused.err
    settings = {"log.initial.task.delay.ms": "3600000"}
    with tidelog.broker(str(cli.data), settings=settings) as own:
        shell = Shell(own.bootstrap_servers)
        assert shell.run(f"{line} 2013-01-01T00:00Z")[0] == ExitCode.USAGE
        assert "the append time of 4 records before offset" in shell.err
    assert len(cli.ok("read", "flights", "-o", "json").objects) == 5


@pytest.mark.parametrize("is_finished", [False, True])
def test_records_without_a_timestamp_are_not_deleted_by_one(
    tmp_path: Path, is_finished: bool
) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    cli.append(at(-1), at(DAY_MS), at(-1))
    cli.append(at(-1))
    cli.append(at(5 * DAY_MS), at(-1))
    if is_finished:
        with tidelog.open(str(cli.data), writable=True) as log:
            log.log("flights", 0).roll()
    line = "delete-records flights --yes --before"
    for before, count, offset in (("1970-01-04Z", 3, 4), ("now", 4, 6)):
        refused = cli.run(*line.split(), before)
        assert refused.code == ExitCode.USAGE, refused.out
        expected = f"flights-0: {count} records before offset {offset} have no timestamp"
        assert expected in refused.err
        assert "--untimed" in refused.err
    with tidelog.broker(str(cli.data), settings={"log.initial.task.delay.ms": "3600000"}) as own:
        shell = Shell(own.bootstrap_servers)
        assert shell.run(f"{line} 1970-01-04Z")[0] == ExitCode.USAGE
        assert "3 records before offset 4 have no timestamp" in shell.err
    assert len(cli.ok("read", "flights", "-o", "json").objects) == 6
    cli.ok(*line.split(), "1970-01-04Z", "--untimed")
    assert len(cli.ok("read", "flights", "-o", "json").objects) == 2


def test_records_without_a_timestamp_are_found_without_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    cli.append(at(-1), at(DAY_MS), at(-1), at(5 * DAY_MS))
    monkeypatch.setitem(sys.modules, "tidelog.scan.reader", None)
    refused = cli.run("delete-records", "flights", "--before", "1970-01-04Z")
    assert refused.code == ExitCode.USAGE
    assert "flights-0: 2 records before offset 3 have no timestamp" in refused.err


def test_partitions_and_deleted_records_of_a_directory(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    cli.append(*records(4))
    check_deletions(LocalShell(cli))
    cli.ok("partitions", "flights", "--to", "3")
    assert cli.ok("topics", "-o", "json").objects[0]["partitions"] == 3
    assert cli.run("partitions", "flights", "--to", "2").code == ExitCode.USAGE
    cli.ok("create", "keyed", "--config", "cleanup.policy=compact")
    cli.append(at(1, key=b"k"), topic="keyed")
    refused = cli.run("delete-records", "keyed:0", "--offset", "1", "--yes")
    assert (refused.code, "cleanup.policy does not include delete" in refused.err) == (1, True)
