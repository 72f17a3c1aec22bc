"""SCRAM users and ACLs of a broker, stored as records of its metadata log."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.config import BrokerConfig
from tidelog.errors import ConfigError, CorruptFile
from tidelog.server.admin.metadata_log import Begin, DurableState, MetadataLog
from tidelog.server.runtime.threads import FEW, Work
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.storage.directory.broker_files import (
    AclRow,
    ScramCredential,
    SecurityState,
)

if TYPE_CHECKING:
    from tidelog.server.security.authorizer import Acl, Authorizer, RuleTable
    from tidelog.server.security.sasl import ScramMechanism, Shape


# Maximum numbers of ACLs and of SCRAM credentials. In Kafka, only the available memory limits these
# numbers.
ACLS_MAX: Final = 100_000

USERS_MAX: Final = 100_000


class SecurityStore:
    """Users and ACLs of one broker.

    Used only in the event loop's thread, except `credential` and `shapes`.

    Attributes:
        authorizer: Authorizer; None if the settings name no authorizer.
    """

    def __init__(
        self, metadata: MetadataLog, config: BrokerConfig, work: Work, begin: Begin
    ) -> None:
        """Create the store from the users and ACLs that the metadata log contains.

        Args:
            metadata: Log of users and ACLs.
            config: Settings with the super users and the authorizer.
            work: Threads for writing.
            begin: Starts a change as a task. The directory is not closed before the change ends.

        Raises:
            CorruptFile: An ACL has an unknown resource type, pattern, operation or permission.
            ConfigError: `super.users` is invalid.
        """
        self._metadata = metadata
        self._work = work
        # The effects of a change are prepared in the thread that writes the change, because
        # preparing them takes long if there are very many users and ACLs.
        self._next: _Next | None = None
        self._stored: DurableState[SecurityState] = DurableState(
            metadata.path,
            "users and ACLs",
            read=lambda: metadata.security,
            write=self._write,
            work=work,
            begin=begin,
        )
        self.authorizer = _authorizer(config)
        self._shapes: Mapping[int, Mapping[Shape, int]] = {}
        self._stored.on_stored = lambda _before, _now: self._apply()
        try:
            self._next = self._prepare(SecurityState(), self._stored.state)
        except CorruptFile as error:
            raise error.located(metadata.path) from error
        self._apply()

    def _write(self, state: SecurityState) -> None:
        """Write a change and prepare its effects. This runs in a thread."""
        self._next = None
        self._metadata.keep_security(state)
        self._next = self._prepare(self._stored.state, state)

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

    def _apply(self) -> None:
        """Apply the effects of a change that has been written."""
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
        """Return a user's credential for a mechanism; None if it does not exist. Thread-safe."""
        return self._stored.state.scram.get((user, int(mechanism)))

    def shapes(self, mechanism: "ScramMechanism") -> "Mapping[Shape, int]":
        """Return the number of users for each common shape of a mechanism's credentials.

        A shape consists of the number of iterations and the length of the salt. Thread-safe.
        """
        return self._shapes.get(mechanism, {})

    def credentials(self) -> Mapping[tuple[str, int], ScramCredential]:
        """Return all credentials, by user and number of the mechanism."""
        return self._stored.state.scram

    async def change_credentials(
        self, change: Callable[[dict[tuple[str, int], ScramCredential]], None]
    ) -> None:
        """Let `change` modify a copy of all credentials, and store the copy.

        Raises:
            StorageFailure: The change could not be stored, and nothing has changed.
        """

        def changed(state: SecurityState) -> SecurityState:
            scram = dict(state.scram)
            change(scram)
            return state._replace(scram=scram)

        await self._stored.change(changed)

    # -- ACLs ----------------------------------------------------------------------------------

    async def add_acls(self, acls: "Iterable[Acl]") -> "frozenset[Acl]":
        """Add ACLs durably, in order; return the ACLs beyond the limit, which are not added.

        Raises:
            StorageFailure: The change could not be stored, and no ACL was added.
        """
        by_row = {_row_of(acl): acl for acl in acls}
        refused: list[Acl] = []

        def changed(state: SecurityState) -> SecurityState:
            # The limit is checked here and not earlier, because changes of other requests may have
            # been made since this request began.
            new = [row for row in by_row if row not in state.acls]
            room = max(ACLS_MAX - len(state.acls), 0)
            refused[:] = [by_row[row] for row in new[room:]]
            return state._replace(acls=state.acls.union(new[:room]))

        await self._stored.change(changed)
        return frozenset(refused)

    async def remove_acls(self, acls: "Collection[Acl]") -> None:
        """Remove ACLs durably. If storing fails, raises StorageFailure and removes no ACL."""
        rows = await self._work.run_long(len(acls), lambda: frozenset(map(_row_of, acls)))
        await self._stored.change(lambda state: state._replace(acls=state.acls - rows))


class _Next(NamedTuple):
    """Prepared effects of a change of users and ACLs.

    Attributes:
        table: All ACLs if many have changed; otherwise None.
        added: Added ACLs if few have changed; otherwise empty.
        removed: Removed ACLs if few have changed; otherwise empty.
        shapes: For each mechanism, the number of users for each common shape of credentials; None
            if no user has changed.
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
    pattern = (int(acl.resource_type), acl.name, int(acl.pattern))
    return (*pattern, acl.principal, acl.host, int(acl.operation), int(acl.permission))


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
        raise CorruptFile(f"an ACL of an unknown kind: {error}") from error
