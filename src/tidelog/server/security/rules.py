"""What a broker knows of users and rights, as its directory keeps it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from tidelog.config import BrokerConfig
from tidelog.errors import ConfigError, CorruptFile
from tidelog.server.kept_state import Begin, KeptState
from tidelog.server.metadata_log import MetadataLog
from tidelog.server.security.authorizer import (
    Acl,
    Authorizer,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    RuleTable,
    parse_super_users,
)
from tidelog.server.security.pretenders import Shape, most_common, shape_of
from tidelog.server.security.scram import ScramMechanism
from tidelog.server.work import FEW, Work
from tidelog.storage.metadata_file import METADATA_FILE, AclRow, ScramCredential, SecurityState

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
        table: RuleTable | None = None
        shapes: Mapping[int, Mapping[Shape, int]] | None = None
        if self.authorizer is not None:
            added, removed = now.acls - before.acls, before.acls - now.acls
        if len(added) + len(removed) > FEW:
            table = RuleTable(map(_acl_of, now.acls))
            added = removed = frozenset()
        if now.scram != before.scram:
            shapes = {mechanism: _shapes_of(now.scram, mechanism) for mechanism in ScramMechanism}
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

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """A user's credential, None for one that has none. Any thread may ask."""
        return self._kept.state.scram.get((user, int(mechanism)))

    def shapes(self, mechanism: ScramMechanism) -> Mapping[Shape, int]:
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

    async def add_acls(self, acls: Iterable[Acl]) -> frozenset[Acl]:
        """Add rules, durably; those for which there was no room any more, first come first served.

        Raises:
            StorageFailure: They could not be kept; none was added.
        """
        asked = {_row_of(acl): acl for acl in acls}
        refused: list[Acl] = []

        def changed(state: SecurityState) -> SecurityState:
            # Counted here, where all that came before is there: many may be asked for at once.
            new = [row for row in asked if row not in state.acls]
            room = max(ACLS_MAX - len(state.acls), 0)
            refused[:] = [asked[row] for row in new[room:]]
            return replace(state, acls=state.acls.union(new[:room]))

        await self._kept.change(changed)
        return frozenset(refused)

    async def remove_acls(self, acls: Collection[Acl]) -> None:
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

    table: RuleTable | None
    added: Collection[Acl]
    removed: Collection[Acl]
    shapes: Mapping[int, Mapping[Shape, int]] | None


def _shapes_of(
    scram: Mapping[tuple[str, int], ScramCredential], mechanism: ScramMechanism
) -> Mapping[Shape, int]:
    return most_common(
        shape_of(kept.iterations, kept.salt)
        for (_, number), kept in scram.items()
        if number == mechanism
    )


def _authorizer(config: BrokerConfig) -> Authorizer | None:
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


def _row_of(acl: Acl) -> AclRow:
    what = (int(acl.resource_type), acl.name, int(acl.pattern))
    return (*what, acl.principal, acl.host, int(acl.operation), int(acl.permission))


def _acl_of(row: AclRow) -> Acl:
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
