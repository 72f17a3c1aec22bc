"""`tidelog users`, `tidelog acls`, `tidelog quotas`: a cluster's users, rights and limits."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import click

from tidelog.amounts import plural
from tidelog.cli import output
from tidelog.cli.command_groups import CommandGroup
from tidelog.cli.options import (
    Format,
    bundled,
    declared_by,
    examples,
    format_option,
    option,
    pairs,
    with_options,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import Access, cluster_options, open_cluster
from tidelog.cli.surroundings import Surroundings, UsageProblem, read_settings_text
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.administration import (
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    OPERATIONS,
    QUOTAS,
    Acl,
    Entity,
    ScramUser,
)

yes_option: Final = click.option(
    "--yes", is_flag=True, help="Confirm removal. Default: show what would be removed."
)


# -- users ---------------------------------------------------------------------------------------


@click.group(
    "users",
    cls=CommandGroup,
    epilog=examples(
        "tidelog users list -b broker:9092",
        "tidelog users add alice -b broker:9092",
        "tidelog users remove alice -b broker:9092 --yes",
    ),
)
def users() -> None:
    """List, add and remove SCRAM users.

    Brokers of tidelog and Kafka store users' salted keys, never passwords.
    """


# Mode bits that let a file's group and other users read it.
_OTHERS: Final = 0o044
_MECHANISM: Final = click.option(
    "--mechanism",
    type=click.Choice(MECHANISMS),
    default=MECHANISMS[1],
    show_default=True,
    help="SASL mechanism of the password.",
)


@users.command("list", epilog=examples("tidelog users list -b broker:9092 -o json"))
@cluster_options
@format_option
@click.pass_obj
def list_users(surroundings: Surroundings, access: Access, kind: Format) -> None:
    """List all users, each with its mechanisms."""
    from tidelog.remote.administration import scram_users

    with open_cluster(surroundings, access) as cluster:
        entries = scram_users(cluster)
    columns = output.columns("user", "mechanism", output.number("iterations"))
    rows: list[list[Cell]] = [[user.name, user.mechanism, user.iterations] for user in entries]
    output.print_rows(surroundings, columns, rows, kind)
    if not rows:
        surroundings.note(f"{access.bootstrap} has no users")


@users.command(
    "add",
    epilog=examples(
        "tidelog users add alice -b broker:9092",
        "tidelog users add alice -b broker:9092 --password-file alice.password",
    ),
)
@click.argument("name", metavar="NAME")
@cluster_options
@_MECHANISM
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="Number of hash iterations.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    help="File whose first line is the password, - for stdin."
    " Default: the variable TIDELOG_PASSWORD, else a prompt.",
)
@click.pass_obj
def add(
    surroundings: Surroundings,
    name: str,
    access: Access,
    mechanism: str,
    iterations: int,
    password_file: str | None,
) -> None:
    """Add a user, or replace its password."""
    from tidelog.remote.administration import accepts_passwords, broker_settings, set_password

    if not name:
        raise UsageProblem("the user name is empty")
    if not _is_utf8(name):
        raise UsageProblem(f"user {name}: the name is not UTF-8")
    password = _password(surroundings, name, password_file)
    user = ScramUser(name=name, mechanism=mechanism, iterations=iterations)
    with open_cluster(surroundings, access) as cluster:
        set_password(cluster, user, password.encode())
        can_log_in = accepts_passwords(broker_settings(cluster), mechanism)
    if can_log_in:
        surroundings.say(f"user {name} can log in with {mechanism}")
        return
    surroundings.say(f"stored the {mechanism} password of {name}")
    surroundings.note(
        f"{name} can't log in yet: no listener of {access.bootstrap} accepts {mechanism}; set"
        f" sasl.enabled.mechanisms={mechanism.upper()} and a SASL_SSL listener (docs/security.md)"
    )


def _password(surroundings: Surroundings, name: str, file: str | None) -> str:
    """Return the password from a file, the environment or a prompt; raises UsageProblem."""
    if file == "-":
        text = surroundings.stdin.readline().decode(errors="surrogateescape")
    elif file is not None:
        text = read_settings_text(surroundings, file)
        if surroundings.env.files.stat(file).permissions & _OTHERS:
            surroundings.note(f"{file}: other users of this machine can read it; chmod 600 {file}")
    elif "TIDELOG_PASSWORD" in surroundings.variables:
        text = surroundings.variables["TIDELOG_PASSWORD"]
    elif surroundings.stdin.isatty():
        prompt = f"Password of {name}"
        text = click.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise UsageProblem(
            f"no password of {name}: give --password-file FILE, or set TIDELOG_PASSWORD"
        )
    password = text.partition("\n")[0].removesuffix("\r")
    if not password:
        raise UsageProblem(f"the password of {name} is empty")
    if not _is_utf8(password):
        raise UsageProblem(f"the password of {name} is not UTF-8")
    return password


def _is_utf8(text: str) -> bool:
    """Whether a text comes from valid UTF-8; Python replaces invalid bytes by surrogates."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


@users.command("remove", epilog=examples("tidelog users remove alice -b broker:9092 --yes"))
@click.argument("name", metavar="NAME")
@cluster_options
@click.option(
    "--mechanism",
    type=click.Choice(MECHANISMS),
    help="Remove only the password of this mechanism. Default: all passwords of the user.",
)
@yes_option
@click.pass_obj
def remove(
    surroundings: Surroundings, name: str, access: Access, mechanism: str | None, yes: bool
) -> None:
    """Remove a user."""
    from tidelog.remote.administration import remove_user, scram_users

    with open_cluster(surroundings, access) as cluster:
        of_name = [user for user in scram_users(cluster) if user.name == name]
        chosen = [user for user in of_name if mechanism in (None, user.mechanism)]
        if not chosen:
            what = f" with {mechanism}" if of_name else ""
            raise UsageProblem(f"{access.bootstrap} has no user {name}{what}")
        listed = " and ".join(user.mechanism for user in chosen)
        if not yes:
            raise UsageProblem(f"{name} would lose its {listed} password; add --yes to remove it")
        for user in chosen:
            remove_user(cluster, user)
    surroundings.say(f"removed {name} ({listed})")


# -- ACLs ----------------------------------------------------------------------------------------


_AUTHORIZER: Final = "authorizer.class.name"
# On narrow terminals, columns of names are shortened down to this width.
_NAME_WIDTH: Final = 10
_ACLS: Final = output.columns(
    output.wrapped("resource", "name", least=_NAME_WIDTH),
    "pattern",
    output.wrapped("principal", least=_NAME_WIDTH),
    "host",
    output.wrapped("operation", least=_NAME_WIDTH),
    output.titled(access=output.columns("permission")),
)


def _resource(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    prefix: bool,
) -> Acl:
    """Return a filter for the resource that the options name; without options, for all resources.

    Raises:
        UsageProblem: The options name several resources, or contradict each other.
    """
    named = {"topic": topic, "group": group, "transactional-id": transactional_id}
    chosen = [(kind, name) for kind, name in named.items() if name is not None]
    if cluster:
        chosen.append((CLUSTER_RESOURCE, CLUSTER_NAME))
    if len(chosen) > 1:
        raise UsageProblem("give one of --topic, --group, --transactional-id, --cluster")
    if prefix and (not chosen or cluster):
        raise UsageProblem("--prefix applies only with --topic, --group or --transactional-id")
    if not chosen:
        return Acl()
    return Acl(resource=chosen[0][0], name=chosen[0][1], is_prefix=prefix)


_OptionDecorator: TypeAlias = Callable[[Callable[..., object]], Callable[..., object]]


def _resource_flags(without: str) -> tuple[_OptionDecorator, ...]:
    """Return the options that name a resource; `without` describes their default in the help."""
    return (
        click.option("--topic", metavar="NAME", help=f"A topic; * for all topics. {without}."),
        click.option(
            "--group", metavar="NAME", help=f"A consumer group; * for all groups. {without}."
        ),
        click.option(
            "--transactional-id", metavar="ID", help=f"A transactional id; * for all. {without}."
        ),
        click.option("--cluster", is_flag=True, help="The cluster as a whole."),
        click.option(
            "--prefix",
            is_flag=True,
            help="All topics, groups or ids whose name begins with NAME or ID. Default: exactly"
            " this one.",
        ),
    )


_resource_options: Final = bundled("resource", _resource, *_resource_flags("Default: none"))


def _pattern(  # noqa: PLR0913 - one parameter for each option
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    prefix: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
    permission: str | None,
) -> Acl:
    resource = _resource(topic, group, transactional_id, cluster, prefix)
    return replace(
        resource, principal=principal, host=host, operation=operation, permission=permission
    )


_filter_options: Final = bundled(
    "pattern",
    _pattern,
    *_resource_flags("Default: all resources"),
    click.option("--principal", metavar="TYPE:NAME", help="E.g. User:alice. Default: all."),
    click.option("--host", metavar="ADDRESS", help="Address of clients. Default: all."),
    click.option(
        "--operation",
        metavar="OP",
        type=click.Choice(OPERATIONS),
        help="An operation. Default: all.",
    ),
    click.option(
        "--permission",
        type=click.Choice(["allow", "deny"]),
        help="Allowing or denying ACLs. Default: both.",
    ),
)


@click.group(
    "acls",
    cls=CommandGroup,
    epilog=examples(
        "tidelog acls list -b broker:9092 --topic flights",
        "tidelog acls add -b broker:9092 --principal User:alice --topic flights --operation read",
        "tidelog acls remove -b broker:9092 --principal User:alice --yes",
    ),
)
def acls() -> None:
    """List, add and remove ACLs: who may do what."""


@acls.command("list", epilog=examples("tidelog acls list -b broker:9092 --topic flights -o json"))
@cluster_options
@_filter_options
@format_option
@click.pass_obj
def list_acls(surroundings: Surroundings, access: Access, pattern: Acl, kind: Format) -> None:
    """List ACLs, all or those that match the options."""
    from tidelog.remote.administration import acls as find
    from tidelog.remote.administration import broker_settings

    with open_cluster(surroundings, access) as cluster:
        matches = find(cluster, pattern)
        # A broker without an authorizer returns an error, but librdkafka drops the error. The
        # broker's settings therefore have to show whether it has an authorizer.
        settings = {} if matches else broker_settings(cluster)
    output.print_rows(surroundings, _ACLS, map(_acl_row, matches), kind)
    if settings.get(_AUTHORIZER) == "":
        surroundings.note(
            f"{access.bootstrap} has no authorizer: every client may do everything, and ACLs have"
            f" no effect; {_AUTHORIZER} sets one (docs/security.md)"
        )
    elif not matches:
        surroundings.note(f"{access.bootstrap} has no such ACLs")


def _acl_row(acl: Acl) -> list[Cell]:
    return [
        acl.resource,
        acl.name,
        "prefix" if acl.is_prefix else "literal",
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAclOptions:
    """Options of `tidelog acls add`."""

    access: Access = declared_by(cluster_options)
    resource: Acl = declared_by(_resource_options)
    principal: str = option(
        "--principal",
        required=True,
        metavar="TYPE:NAME",
        help="The user that the ACL applies to, such as User:alice; User:* for all users.",
    )
    host: str = option(
        "--host",
        default="*",
        show_default=True,
        metavar="ADDRESS",
        help="The address from which the user connects; * for all addresses.",
    )
    operations: tuple[str, ...] = option(
        "--operation",
        multiple=True,
        required=True,
        metavar="OP",
        type=click.Choice(OPERATIONS),
        help=f"An operation on the resource; repeatable. One of {', '.join(OPERATIONS)}.",
    )
    deny: bool = option("--deny", is_flag=True, help="Deny the operations. Default: allow them.")
    kind: Format = declared_by(format_option)


@acls.command(
    "add",
    epilog=examples(
        "tidelog acls add -b broker:9092 --principal User:alice --topic flights --operation read",
        "tidelog acls add -b broker:9092 --principal User:alice --group fly --prefix"
        " --operation read",
    ),
)
@with_options(AddAclOptions)
def add_acl(surroundings: Surroundings, options: AddAclOptions) -> None:
    """Allow or deny a user operations on a resource.

    The resource is one of --topic, --group, --transactional-id and --cluster. An ACL that denies
    an operation has priority over those that allow it.
    """
    from tidelog.remote.administration import add_acls

    if options.resource.resource is None:
        raise UsageProblem("give the resource: --topic, --group, --transactional-id or --cluster")
    if ":" not in options.principal:
        raise UsageProblem(f"--principal {options.principal!r}: write TYPE:NAME, e.g. User:alice")
    permission = "deny" if options.deny else "allow"
    added = [
        replace(
            options.resource,
            principal=options.principal,
            host=options.host,
            operation=operation,
            permission=permission,
        )
        for operation in dict.fromkeys(options.operations)
    ]
    with open_cluster(surroundings, options.access) as cluster:
        add_acls(cluster, added)
    output.print_rows(surroundings, _ACLS, map(_acl_row, added), options.kind)
    surroundings.say(f"added {plural(len(added), 'ACL')}")


@acls.command(
    "remove", epilog=examples("tidelog acls remove -b broker:9092 --principal User:alice --yes")
)
@cluster_options
@_filter_options
@yes_option
@format_option
@click.pass_obj
def remove_acl(
    surroundings: Surroundings, access: Access, pattern: Acl, yes: bool, kind: Format
) -> None:
    """Remove the ACLs that match the options."""
    from tidelog.remote.administration import acls as find
    from tidelog.remote.administration import remove_acls

    if pattern == Acl():
        raise UsageProblem("no ACLs selected; give --principal, --topic or another option")
    with open_cluster(surroundings, access) as cluster:
        matching = remove_acls(cluster, pattern) if yes else find(cluster, pattern)
    output.print_rows(surroundings, _ACLS, map(_acl_row, matching), kind)
    counted = plural(len(matching), "ACL")
    if yes:
        surroundings.say(f"removed {counted}")
    else:
        surroundings.note(f"dry run: would remove {counted}; --yes removes them")


# -- quotas --------------------------------------------------------------------------------------


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
) -> Entity:
    """Return the clients that the options name; raises UsageProblem."""
    if user is not None and default_user:
        raise UsageProblem("--user and --default-user can't be combined; give one of them")
    if client_id is not None and default_client_id:
        raise UsageProblem(
            "--client-id and --default-client-id can't be combined; give one of them"
        )
    entity: dict[str, str | None] = {}
    if user is not None or default_user:
        entity["user"] = user
    if client_id is not None or default_client_id:
        entity["client-id"] = client_id
    if ip is not None:
        entity["ip"] = ip
    if not entity:
        raise UsageProblem(
            "give the clients: --user, --default-user, --client-id or --default-client-id"
        )
    return entity


_entity_options: Final = bundled(
    "entity",
    _entity,
    click.option("--user", metavar="NAME", help="Quota of this user. Default: of all users."),
    click.option(
        "--default-user", is_flag=True, help="Quota of users without a quota of their own."
    ),
    click.option(
        "--client-id", metavar="ID", help="Quota of this client id. Default: of all client ids."
    ),
    click.option(
        "--default-client-id",
        is_flag=True,
        help="Quota of client ids without a quota of their own.",
    ),
    click.option(
        "--ip",
        metavar="ADDRESS",
        help="Quota of this client address (Apache Kafka only). Default: none.",
    ),
)


@click.group(
    "quotas",
    cls=CommandGroup,
    epilog=examples(
        "tidelog quotas list -b broker:9092",
        "tidelog quotas set producer_byte_rate=1048576 -b broker:9092 --user alice",
        "tidelog quotas remove producer_byte_rate -b broker:9092 --user alice",
    ),
)
def quotas() -> None:
    """List, set and remove quotas of users and client ids."""


@quotas.command("list", epilog=examples("tidelog quotas list -b broker:9092 -o json"))
@cluster_options
@format_option
@click.pass_obj
def list_quotas(surroundings: Surroundings, access: Access, kind: Format) -> None:
    """List all quotas."""
    from tidelog.remote.administration import quotas as find

    with open_cluster(surroundings, access) as cluster:
        entries = find(cluster)
    rows: list[list[Cell]] = [
        [_entity_text(entity), key, int(value) if value.is_integer() else value]
        for entity, values in entries
        for key, value in values.items()
    ]
    output.print_rows(
        surroundings, output.columns("clients", "quota", output.number("value")), rows, kind
    )
    if not rows:
        surroundings.note(f"{access.bootstrap} has no quotas")


def _entity_text(entity: Entity) -> str:
    """Return the clients as text, such as `user alice, default client-id`."""
    return ", ".join(
        f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items()
    )


@quotas.command(
    "set",
    epilog=examples(
        "tidelog quotas set producer_byte_rate=1048576 -b broker:9092 --user alice",
        "tidelog quotas set request_percentage=50 -b broker:9092 --default-client-id",
    ),
)
@click.argument("values", metavar="KEY=NUMBER...", nargs=-1, required=True)
@cluster_options
@_entity_options
@click.pass_obj
def set_quota(
    surroundings: Surroundings, values: tuple[str, ...], access: Access, entity: Entity
) -> None:
    """Set quotas of a user or a client id.

    Keys are producer_byte_rate and consumer_byte_rate in bytes a second, and request_percentage.
    Clients over a quota are slowed down, never refused.
    """
    changes: dict[str, float | None] = {}
    for key, text in pairs(values, "quota").items():
        try:
            changes[_quota_name(key)] = float(text)
        except ValueError as error:
            raise UsageProblem(f"{key}={text}: must be a number") from error
    _change(surroundings, access, entity, changes)


@quotas.command(
    "remove",
    epilog=examples("tidelog quotas remove producer_byte_rate -b broker:9092 --user alice"),
)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@cluster_options
@_entity_options
@click.pass_obj
def remove_quota(
    surroundings: Surroundings, keys: tuple[str, ...], access: Access, entity: Entity
) -> None:
    """Remove quotas; a more general quota, if any, then applies."""
    _change(surroundings, access, entity, dict.fromkeys(map(_quota_name, keys)))


def _quota_name(key: str) -> str:
    from difflib import get_close_matches

    if key not in QUOTAS:
        near = get_close_matches(key, QUOTAS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the quotas are {', '.join(QUOTAS)}"
        raise UsageProblem(f"unknown quota {key!r}; {hint}")
    return key


def _change(
    surroundings: Surroundings,
    access: Access,
    entity: Entity,
    changes: Mapping[str, float | None],
) -> None:
    from tidelog.remote.administration import alter_quotas

    with open_cluster(surroundings, access) as cluster:
        alter_quotas(cluster, entity, changes)
    listed = ", ".join(
        f"removed {key}" if value is None else f"set {key}={value:.15g}"
        for key, value in changes.items()
    )
    surroundings.say(f"{_entity_text(entity)}: {listed}")
