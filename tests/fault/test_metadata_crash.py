"""Users, ACLs and quotas in `tidelog-metadata.log`: every crash, failing call and kind of damage.

After a crash, the file contains each change completely or not at all, and contains all acknowledged
changes. As soon as a later change has succeeded, a failed change must be gone from the file.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.fault.harness import Story, survey
from tests.faults import (
    START_MS,
    CrashState,
    Fault,
    FaultKind,
    Keep,
    SeededEnv,
    reopen,
    seeded_env,
)

from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.server.admin import metadata_log
from tidelog.server.admin.metadata_log import MetadataLog
from tidelog.storage.directory.broker_files import (
    METADATA_FILE,
    AclRow,
    MetadataFile,
    Quotas,
    ScramCredential,
    SecurityState,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

ROOT = "/data"
PATH = f"{ROOT}/{METADATA_FILE}"
WRITABLE = LogDirOptions(create=True)
SECRET = b"secret-key-bytes"
APP: Quotas = {(("client-id", "app"),): {"producer_byte_rate": 5.0, "request_percentage": 1.5}}
ALL: Quotas = {(("client-id", None), ("user", "ada")): {"consumer_byte_rate": 7.0}}


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of superfluous records, so that the file is replaced during a test."""
    monkeypatch.setattr(metadata_log, "SPARE_RECORDS", 4)


def credential(number: int) -> ScramCredential:
    return ScramCredential(b"salt", 4096 + number, SECRET, b"server%d" % number)


def acl(number: int) -> AclRow:
    return (2, f"topic-{number}", 3, "User:ada", "*", 3 + number % 5, 3)


Kept = tuple[SecurityState, Quotas]


def states() -> Iterator[Kept]:
    """Yield the content after each change of users, ACLs or quotas."""
    scram, acls = {}, list[AclRow]()
    for number in range(9):
        scram[f"user-{number % 3}", 1 + number % 2] = credential(number)
        acls = [*acls[-4:], acl(number), acl(number + 100)]
        security = SecurityState(dict(scram), frozenset(acls))
        yield security, APP if number % 2 else ALL
        if number % 4 == 3:
            scram.clear()
            yield SecurityState({}, frozenset(acls)), {}


def open_metadata(env: SeededEnv) -> tuple[LogDir, MetadataLog]:
    log_dir = LogDir.open(ROOT, env=env, options=WRITABLE)
    try:
        return log_dir, MetadataLog(log_dir)
    except BaseException:
        log_dir.abandon()
        raise


def kept(log: MetadataLog) -> Kept:
    return log.security, log.quotas


def at_work() -> tuple[SeededEnv, Story[Kept]]:
    env = seeded_env(3)
    log_dir, log = open_metadata(env)
    env.files.settle()
    story: Story[Kept] = Story(env.files, kept(log))
    for security, quotas in states():
        log.keep_security(security)
        story.tell((security, story.latest[1]))
        log.keep_quotas(quotas)
        story.tell((security, quotas))
    log_dir.close()
    story.tell(story.latest)
    return env, story


def judge(state: CrashState, before: Kept, after: Kept) -> None:
    """Assert that the log has the old or the new content, accepts changes, and survives a crash."""
    env = seeded_env(4, files=reopen(state), now_ms=START_MS + 1_000)
    _, log = open_metadata(env)
    found = kept(log)
    assert found in (before, after)
    if found != (SecurityState(), {}):  # a power loss must not lose what a reader has seen
        again = replace(env, files=reopen(env.files.crash(Keep.SYNCED)))
        assert kept(open_metadata(again)[1]) == found
    later = SecurityState(acls=frozenset({acl(1), acl(2)}))
    log.keep_security(later)
    last = replace(env, files=reopen(env.files.crash(Keep.SYNCED)))
    assert kept(open_metadata(last)[1]) == (later, found[1])


@pytest.mark.parametrize("keep", list(Keep))
def test_power_is_lost_at_every_call(keep: Keep) -> None:
    env, story = at_work()
    looked = survey(env.files, story, env.files.prefixes(keep), judge)
    assert looked.judged >= 20


def test_power_is_lost_in_seeded_ways() -> None:
    env, story = at_work()
    survey(env.files, story, env.files.crash_states(range(400)), judge)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE, FaultKind.SHORT_WRITE])
def test_a_change_whose_call_failed_does_not_exist_after_the_next_change(kind: FaultKind) -> None:
    for call in range(400):
        env = seeded_env(5)
        log_dir, log = open_metadata(env)
        env.files.writes.fault = Fault(env.files.calls + call, kind)
        before: Kept = (SecurityState(), {})
        for security, quotas in states():
            try:
                log.keep_security(security)
                before = (security, before[1])
                log.keep_quotas(quotas)
                before = (security, quotas)
            except OSError:
                break
        is_over = not env.files.writes.failed
        env.files.writes.fault = None
        log.keep_quotas(before[1])  # an empty change, which returns the current content
        log_dir.close()
        assert kept(open_metadata(env)[1]) == before
        if is_over:
            return
    raise AssertionError("calls without end")


def test_a_stop_in_doubt_is_no_clean_one() -> None:
    """A stop after a failed write is not clean; else the next start would refuse a torn write."""
    env = seeded_env(6)
    log_dir, log = open_metadata(env)
    log.keep_quotas(APP)
    env.files.writes.fault = Fault(env.files.calls + 1, FaultKind.EIO)  # a write or a sync
    with pytest.raises(OSError, match="error"):
        log.keep_quotas(ALL)
    env.files.writes.fault = None
    log_dir.close()
    again, log = open_metadata(env)
    assert not again.was_stopped_cleanly
    assert log.quotas in (APP, ALL)


# -- damage ------------------------------------------------------------------------------------


def written(count: int) -> SeededEnv:
    """Return a directory after a clean stop; its metadata log has `count` changes."""
    env = seeded_env(8)
    log_dir, log = open_metadata(env)
    for number in range(count):
        log.keep_security(SecurityState(acls=frozenset(map(acl, range(number + 1)))))
    log_dir.close()
    return env


def spoil(env: SeededEnv, data: bytes, *, is_clean: bool) -> None:
    file = env.files.open(PATH, write=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()
    if not is_clean:
        env.files.remove(f"{ROOT}/.kafka_cleanshutdown")


def bytes_of(env: SeededEnv) -> bytes:
    file = env.files.open(PATH)
    data = file.pread(file.size(), 0)
    file.close()
    return data


def test_a_torn_end_is_left_out_after_a_hard_stop_and_damage_after_a_clean_one() -> None:
    whole = bytes_of(written(3))
    shorter = bytes_of(written(2))
    assert whole.startswith(shorter)
    for size in range(len(shorter) + 1, len(whole)):
        env = written(1)
        spoil(env, whole[:size], is_clean=False)
        log_dir, log = open_metadata(env)
        assert len(log.security.acls) == 2
        assert any(METADATA_FILE in line for line in log_dir.reports)
        log_dir.close()
        assert len(open_metadata(env)[1].security.acls) == 2
    env = written(1)
    spoil(env, whole[:-1], is_clean=True)
    with pytest.raises(CorruptFile, match=METADATA_FILE):
        open_metadata(env)


def test_damage_in_front_of_a_change_is_never_passed_over() -> None:
    """Damage is refused even after a hard stop: skipping it would silently lose later ACLs."""
    whole = bytes_of(written(3))
    end = len(bytes_of(written(2)))
    for at in range(8, end):  # no checksum covers the offset in bytes 0 to 7
        env = written(1)
        spoil(env, whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :], is_clean=False)
        with suppress(CorruptFile):
            assert len(open_metadata(env)[1].security.acls) == 3, at


def test_no_report_of_damage_has_a_secret() -> None:
    env = seeded_env(8)
    log_dir, log = open_metadata(env)
    log.keep_security(SecurityState({("ada", 1): credential(1)}))
    log_dir.close()
    data = bytes_of(env)
    assert SECRET in data
    spoil(env, data[:-1], is_clean=True)
    with pytest.raises(CorruptFile) as caught:
        open_metadata(env)
    assert "secret" not in repr(caught.value) + str(caught.value)
    assert "secret" not in repr(SecurityState({("ada", 1): credential(1)}))


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x0e\x00\x7f", b"\x01\x13\x00" + bytes(18)])
def test_records_that_cant_be_read_are_damage(value: bytes) -> None:
    env = written(1)
    log_dir = LogDir.open(ROOT, env=env, options=WRITABLE)
    MetadataFile(env, ROOT).replace([value])
    log_dir.close()
    with pytest.raises(CorruptFile, match=METADATA_FILE):
        open_metadata(env)


@pytest.mark.parametrize("value", [b"\x02\x0e\x00", b"\x01\x0e\x01", b"\x01\x04\x00"])
def test_records_of_a_later_release_are_refused_as_such(value: bytes) -> None:
    env = written(1)
    log_dir = LogDir.open(ROOT, env=env, options=WRITABLE)
    MetadataFile(env, ROOT).replace([value])
    log_dir.close()
    with pytest.raises(UnsupportedVersion, match=rf"^{PATH}: record \d+ v\d+ in frame v\d+ is not"):
        open_metadata(env)


# -- bounds ------------------------------------------------------------------------------------


def test_the_file_grows_with_its_content_and_not_with_changes() -> None:
    env = seeded_env(9)
    log_dir, log = open_metadata(env)
    sizes = []
    for number in range(200):
        log.keep_security(SecurityState({("ada", 1): credential(number)}))
        log.keep_quotas(APP if number % 2 else ALL)
        sizes.append(env.files.stat(PATH).size)
    assert max(sizes) < 2_000
    log_dir.close()
    assert kept(open_metadata(env)[1]) == (SecurityState({("ada", 1): credential(199)}), APP)


def test_an_empty_state_needs_no_file() -> None:
    env = seeded_env(9)
    log_dir, log = open_metadata(env)
    log.keep_security(SecurityState())
    log.keep_quotas({})
    log_dir.close()
    assert not env.files.exists(PATH)


def test_the_frame_is_kafkas() -> None:
    """A frame has version 1, the record's type and version, compact lengths, no tagged fields."""
    env = written(1)
    values = MetadataFile(env, ROOT).read(may_be_torn=False)
    assert values is not None
    assert values[0][:3] == b"\x01\x12\x00"
    assert values[0][19:] == b"\x02\x08topic-0\x03\x09User:ada\x02*\x03\x03\x00"
