"""Cluster metadata in a broker's directory: users, ACLs, quotas and changed settings.

Users, ACLs and quotas are records in `tidelog-metadata.log`, settings are in
`tidelog-cluster.json`. Changes are applied one at a time, by any thread. A change is durable before
it is acknowledged; after a kill it is complete or absent. Readers see the state before or after a
change, never part of it. A metadata log in which most records are superseded is rewritten, so its
size is bounded.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from tidelog.config import BrokerConfig
from tidelog.env import Env
from tidelog.errors import ConfigError, CorruptFile
from tidelog.server.runtime.threads import FEW, Work
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.storage.directory.broker_files import (
    CLUSTER_FILE,
    METADATA_FILE,
    AclRow,
    ClusterState,
    MetadataFile,
    Quotas,
    ScramCredential,
    SecurityState,
    read_cluster,
    with_defaults,
    write_cluster,
)
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.open_files import as_storage_failure

if TYPE_CHECKING:
    from tidelog.server.admin.metadata_records import MetadataImage, Record
    from tidelog.server.security.authorizer import Acl, Authorizer, RuleTable
    from tidelog.server.security.sasl import ScramMechanism, Shape


State = TypeVar("State")


# Carries a change out to its end, whoever goes away meanwhile.
Begin: TypeAlias = Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"]


class KeptState(Generic[State]):
    """One such state. Belongs to the loop's thread; any thread may read what is kept.

    Attributes:
        state: What is kept.
        apply: Lets a state hold; awaited before it is kept, and again with the one before where it
            can't be kept.
        on_kept: Called with the state before and the one that is kept now.
    """

    def __init__(
        self,
        path: str,
        what: str,
        *,
        read: Callable[[], State],
        write: Callable[[State], None],
        work: Work,
        begin: Begin,
    ) -> None:
        """Read what there is.

        Args:
            path: The file's, for errors.
            what: What it keeps, for errors.
            read: Reads the file; raises OSError.
            write: Replaces the file durably, in a thread; raises OSError.
            work: Threads for writing.
            begin: Carries a change out to its end; nobody closes the directory before that.

        Raises:
            StorageFailure: It can't be read. What else `read` raises is raised, too.
        """
        self._path = path
        self._what = what
        self._write = write
        self._work = work
        self._begin = begin
        self._changing = asyncio.Lock()
        # Whether the file surely has the state: a write that failed may have come down to the disk.
        self._is_certain = True
        self.apply: Callable[[State], Awaitable[None]] | None = None
        self.on_kept: Callable[[State, State], None] | None = None
        try:
            self.state = read()
        except OSError as error:
            raise as_storage_failure(error, path, f"read {what}") from error

    async def change(self, changed: Callable[[State], State]) -> None:
        """Keep what `changed` makes of the state; what that or `apply` raises is raised here.

        Raises:
            StorageFailure: It could not be kept; the state is the one before. The file may have
                either until the next change, which is written even where it changes nothing.
        """
        # What the disk has, memory has: also where the client that asked has gone meanwhile.
        await asyncio.shield(self._begin(self._carry_out(changed)))

    async def _carry_out(self, changed: Callable[[State], State]) -> None:
        async with self._changing:
            state = changed(self.state)
            if state == self.state and self._is_certain:
                return
            if self.apply is not None:
                await self.apply(state)
            self._is_certain = False
            try:
                await self._work.run(self._write, state)
            except OSError as error:
                if self.apply is not None:
                    await self.apply(self.state)
                raise as_storage_failure(error, self._path, f"keep {self._what}") from error
            self._is_certain = True
            before, self.state = self.state, state
            if self.on_kept is not None:
                self.on_kept(before, state)


# So many records may have been overtaken, beside as many as hold, before a file is replaced.
SPARE_RECORDS: Final = 1_000


class MetadataLog:
    """What a broker keeps of its cluster, and who writes it.

    Attributes:
        path: The log's file, for errors.
        security: Users and rules as they were at the start.
        quotas: Quotas as they were at the start.
    """

    def __init__(self, log_dir: LogDir) -> None:
        """Read it.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: It can't be read.
        """
        self._log_dir = log_dir
        self._env = log_dir.env
        self._file = MetadataFile(log_dir.env, log_dir.path)
        self.path = self._file.path
        # None while nothing is kept: few directories keep anything, and all start without codecs.
        self._kept: MetadataImage | None = None
        self._writing = threading.Lock()
        try:
            self._load()
        except OSError as error:
            raise as_storage_failure(error, self.path, "read users, rules and quotas") from error
        self.security, self.quotas = self._said()

    def _said(self) -> tuple[SecurityState, Quotas]:
        if self._kept is None:
            return SecurityState(), {}
        return self._kept.security, self._kept.kept_quotas()

    @property
    def _image(self) -> "MetadataImage":
        """What is kept; to be changed in place."""
        if self._kept is None:
            from tidelog.server.admin.metadata_records import MetadataImage

            self._kept = MetadataImage()
        return self._kept

    # -- the start -----------------------------------------------------------------------------

    def _load(self) -> None:
        was_clean = self._log_dir.was_stopped_cleanly
        values = self._file.read(may_be_torn=not was_clean)
        for value in values or ():
            self._replay(value)
        if not self._file.is_certain and values is not None:
            self._log_dir.report(f"{self.path}: left out a change that a hard stop has cut")
        if values is not None and not was_clean:
            # What a kill has left may be in the system's memory alone, and is about to be used.
            self._replace(self._image)

    def _replay(self, value: bytes) -> None:
        from tidelog.server.admin.metadata_records import decode

        try:
            self._image.replay(decode(value))
        except CorruptFile as error:
            raise error.located(self.path) from None

    # -- changes -------------------------------------------------------------------------------

    def keep_security(self, state: SecurityState) -> None:
        """Keep users and rules, durably.

        Raises:
            OSError: They could not be kept; what was is there after the next change, or with it.
        """
        with self._writing:
            self._keep(self._image.security_changes(state, self._env.random))

    def keep_quotas(self, quotas: Quotas) -> None:
        """Keep quotas, durably; raises OSError, as `keep_security`."""
        with self._writing:
            self._keep(self._image.quota_changes(quotas))

    def _keep(self, changes: Iterable["Record"]) -> None:
        """Write changes, then let the image have them."""
        from tidelog.server.admin.metadata_records import encode

        records = list(changes)
        file, image = self._file, self._image
        values = [encode(record) for record in records]
        if not values and (file.is_certain or self._is_unborn()):
            return
        spare = file.record_count + len(values) - 2 * image.record_count
        if file.is_certain and spare <= SPARE_RECORDS:
            self._write(lambda: file.append(values))
            self._apply(image, records)
            return
        after = image.copy()
        self._apply(after, records)
        self._replace(after)
        self._kept = after

    @staticmethod
    def _apply(image: "MetadataImage", records: Iterable["Record"]) -> None:
        for record in records:
            image.replay(record)

    def _replace(self, image: "MetadataImage") -> None:
        from tidelog.server.admin.metadata_records import encode

        self._write(lambda: self._file.replace(map(encode, image.snapshot())))

    def _write(self, act: Callable[[], None]) -> None:
        """Where this fails the file may end in half a change: a stop is not a clean one then."""
        self._log_dir.doubts.add(self.path)
        act()
        self._log_dir.doubts.discard(self.path)

    def _is_unborn(self) -> bool:
        """Whether there is no file yet, and nothing that one could say."""
        return not self._image.record_count and not self._env.files.exists(self.path)


_LOGGER: Final = logging.getLogger(__name__)


class ClusterSettings(KeptState[ClusterState]):
    """Quotas and changed settings. Belongs to the loop's thread."""

    def __init__(
        self,
        env: Env,
        directory: str,
        work: Work,
        begin: Begin,
        metadata: MetadataLog,
        defaults_of: Callable[[ClusterState], Mapping[str, str]],
    ) -> None:
        """Read what the directory keeps.

        Args:
            env: Files.
            directory: Whose file.
            work: Threads for writing.
            begin: Carries a change out to its end.
            metadata: Where quotas are kept; settings lie in a file of their own.
            defaults_of: What topics' defaults are at this broker where a state holds.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: It can't be read.
        """
        self._env = env
        self._directory = directory
        self._metadata = metadata
        self._defaults_of = defaults_of
        # What the file surely says; None where that is not known.
        self._in_file: ClusterState | None = None
        super().__init__(
            f"{directory}/{CLUSTER_FILE}",
            "the cluster's settings",
            read=self._read_kept,
            write=self._write_kept,
            work=work,
            begin=begin,
        )

    def _read_kept(self) -> ClusterState:
        self._in_file = read_cluster(self._env.files, self._directory)
        return replace(self._in_file, quotas=self._metadata.quotas)

    def _write_kept(self, state: ClusterState) -> None:
        """Keep what has changed; one change is of quotas, or of settings."""
        self._metadata.keep_quotas(state.quotas)
        settings = replace(with_defaults(state, self._defaults_of(state)), quotas={})
        if settings == self._in_file:
            return
        self._in_file = None
        write_cluster(self._env.files, self._directory, settings)
        self._in_file = settings

    def note_defaults(self) -> None:
        """Note in the file what topics' defaults are at this broker, where it says otherwise.

        Who moves tiers when the broker has stopped goes by that. A broker that can't write it, on a
        full disk, is of use all the same.
        """
        if with_defaults(self.state, self._defaults_of(self.state)) == self.state:
            return
        try:
            self._write(self.state)
        except OSError as error:
            text = "%s: what topics' defaults are could not be noted: %s"
            _LOGGER.warning(text, CLUSTER_FILE, error)


# Kafka's bound on rules of one cluster is the memory; ours is a number.
ACLS_MAX: Final = 100_000


USERS_MAX: Final = 100_000


class Rules:
    """Users and ACLs of one broker. Belongs to the loop's thread, but for `credential`.

    Attributes:
        authorizer: Who may do what; None where nobody asks.
    """

    def __init__(
        self, metadata: MetadataLog, config: BrokerConfig, work: Work, begin: Begin
    ) -> None:
        """Take what the directory keeps.

        Args:
            metadata: Where users and rules are kept.
            config: Super users, and whether there is an authorizer.
            work: Threads for writing.
            begin: Carries a change out to its end; nobody closes the directory before that.

        Raises:
            CorruptFile: A rule is of a kind that nobody knows.
            ConfigError: `super.users` can't be.
        """
        self._metadata = metadata
        self._work = work
        # Made beside the loop while a change is written: rules and users may be very many.
        self._next: _Next | None = None
        self._kept: KeptState[SecurityState] = KeptState(
            metadata.path,
            "users and rules",
            read=lambda: metadata.security,
            write=self._write,
            work=work,
            begin=begin,
        )
        self.authorizer = _authorizer(config)
        self._shapes: Mapping[int, Mapping[Shape, int]] = {}
        self._kept.on_kept = lambda _before, _now: self._heed()
        self._next = self._prepare(SecurityState(), self._kept.state)
        self._heed()

    def _write(self, state: SecurityState) -> None:
        """Write a change, and prepare what follows from it; in a thread."""
        self._next = None
        self._metadata.keep_security(state)
        self._next = self._prepare(self._kept.state, state)

    def _prepare(self, before: SecurityState, now: SecurityState) -> "_Next":
        added = removed = frozenset[AclRow]()
        table = None
        shapes: Mapping[int, Mapping[Shape, int]] | None = None
        if self.authorizer is not None:
            added, removed = now.acls - before.acls, before.acls - now.acls
        if len(added) + len(removed) > FEW:
            table = _table_of(now.acls)
            added = removed = frozenset()
        if now.scram != before.scram:
            shapes = _shapes_of(now.scram)
        return _Next(table, [*map(_acl_of, added)], [*map(_acl_of, removed)], shapes)

    def _heed(self) -> None:
        """Let a change hold that was written."""
        following, self._next = self._next, None
        if following is None:
            return
        if self.authorizer is not None:
            if following.table is not None:
                self.authorizer.use(following.table)
            elif following.added or following.removed:
                self.authorizer.change(following.added, following.removed)
        if following.shapes is not None:
            self._shapes = following.shapes

    # -- users ---------------------------------------------------------------------------------

    def credential(self, mechanism: "ScramMechanism", user: str) -> ScramCredential | None:
        """A user's credential, None for one that has none. Any thread may ask."""
        return self._kept.state.scram.get((user, int(mechanism)))

    def shapes(self, mechanism: "ScramMechanism") -> "Mapping[Shape, int]":
        """Forms of salts and iterations of a mechanism's users. Any thread may ask."""
        return self._shapes.get(mechanism, {})

    def credentials(self) -> Mapping[tuple[str, int], ScramCredential]:
        """All credentials, by user and the mechanism's number."""
        return self._kept.state.scram

    async def change_credentials(
        self, change: Callable[[dict[tuple[str, int], ScramCredential]], None]
    ) -> None:
        """Let `change` change a copy of all credentials, and keep that.

        Raises:
            StorageFailure: It could not be kept; nothing was changed.
        """

        def changed(state: SecurityState) -> SecurityState:
            scram = dict(state.scram)
            change(scram)
            return replace(state, scram=scram)

        await self._kept.change(changed)

    # -- rights --------------------------------------------------------------------------------

    async def add_acls(self, acls: "Iterable[Acl]") -> "frozenset[Acl]":
        """Add rules, durably; those for which there was no room any more, first come first served.

        Raises:
            StorageFailure: They could not be kept; none was added.
        """
        by_row = {_row_of(acl): acl for acl in acls}
        refused: list[Acl] = []

        def changed(state: SecurityState) -> SecurityState:
            # Counted here, where all that came before is there: many may be asked for at once.
            new = [row for row in by_row if row not in state.acls]
            room = max(ACLS_MAX - len(state.acls), 0)
            refused[:] = [by_row[row] for row in new[room:]]
            return replace(state, acls=state.acls.union(new[:room]))

        await self._kept.change(changed)
        return frozenset(refused)

    async def remove_acls(self, acls: "Collection[Acl]") -> None:
        """Remove rules, durably; raises StorageFailure, and then none was removed."""
        rows = await self._work.run_long(len(acls), lambda: frozenset(map(_row_of, acls)))
        await self._kept.change(lambda state: replace(state, acls=state.acls - rows))


class _Next(NamedTuple):
    """What follows from a change of users and rules.

    Attributes:
        table: All rules, where many have changed; else None.
        added: Rules that are new, where few have changed.
        removed: Rules that are there no more, where few have changed.
        shapes: Forms of salts and iterations by mechanism; None where no user has changed.
    """

    table: "RuleTable | None"
    added: "Collection[Acl]"
    removed: "Collection[Acl]"
    shapes: "Mapping[int, Mapping[Shape, int]] | None"


def _shapes_of(
    scram: Mapping[tuple[str, int], ScramCredential],
) -> "Mapping[int, Mapping[Shape, int]]":
    from tidelog.server.security.sasl import ScramMechanism, most_common, shape_of

    return {
        mechanism: most_common(
            shape_of(credential.iterations, credential.salt)
            for (_, number), credential in scram.items()
            if number == mechanism
        )
        for mechanism in ScramMechanism
    }


def _authorizer(config: BrokerConfig) -> "Authorizer | None":
    from tidelog.server.security.authorizer import Authorizer, parse_super_users

    try:
        super_users = parse_super_users(config.super_users)
    except ValueError:
        text = "must be TYPE:NAME, separated by semicolons"
        raise ConfigError("super.users", config.super_users, text) from None
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        super_users=super_users, allows_without_rules=config.allow_everyone_if_no_acl_found
    )


def _table_of(rows: Iterable[AclRow]) -> "RuleTable":
    from tidelog.server.security.authorizer import RuleTable

    return RuleTable(map(_acl_of, rows))


def _row_of(acl: "Acl") -> AclRow:
    what = (int(acl.resource_type), acl.name, int(acl.pattern))
    return (*what, acl.principal, acl.host, int(acl.operation), int(acl.permission))


def _acl_of(row: AclRow) -> "Acl":
    from tidelog.server.security.authorizer import Acl

    try:
        return Acl(
            resource_type=ResourceType(row[0]),
            name=row[1],
            pattern=PatternType(row[2]),
            principal=row[3],
            host=row[4],
            operation=Operation(row[5]),
            permission=Permission(row[6]),
        )
    except ValueError as error:
        raise CorruptFile(f"{METADATA_FILE}: a rule of an unknown kind: {error}") from error
