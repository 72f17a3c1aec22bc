"""DescribeUserScramCredentials and AlterUserScramCredentials.

Each user may be named once in a request; what one is refused for is not the others' business.

Source: Kafka's protocol guide, APIs 50 and 51; KIP-554; Kafka 4.3's ScramControlManager and
ScramImage.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.server.errors import Refusal, refusal_of
from tidelog.server.requests import Long, RequestContext, long_if_many
from tidelog.server.security.rules import USERS_MAX
from tidelog.server.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
)
from tidelog.server.slices import Slices
from tidelog.storage.metadata_file import ScramCredential

NAME_BYTES_MAX: Final = 1024
# Of a salt, and of a salted password, which is hashed on the loop.
SALT_BYTES_MAX: Final = 1024
_TWICE: Final = "A user credential cannot be altered twice in the same request"

_Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion
_Kept: TypeAlias = dict[tuple[str, int], ScramCredential]


async def describe_user_scram_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse | Long:
    """Which mechanisms users have credentials for; all users where none is named."""
    credentials = context.node.rules.credentials()
    names = [user.name for user in request.users or ()]
    count = len(names) or len(credentials)
    results = await context.node.work.run_long(count, _describe, credentials, names)
    return long_if_many(DescribeUserScramCredentialsResponse(results=results), results)


def _describe(
    credentials: Mapping[tuple[str, int], ScramCredential], names: Sequence[str]
) -> list[DescribeUserScramCredentialsResult]:
    """Results for users, for all of them where none is named; for any thread."""
    wanted = names or sorted({user for user, _ in credentials})
    infos = {name: _infos(credentials, name) for name in wanted}
    times = Counter(wanted)
    return [_described(name, times[name], infos[name]) for name in infos]


def _infos(
    credentials: Mapping[tuple[str, int], ScramCredential], name: str
) -> list[CredentialInfo]:
    return [
        CredentialInfo(mechanism=mechanism, iterations=kept.iterations)
        for mechanism in sorted(ScramMechanism)
        if (kept := credentials.get((name, int(mechanism)))) is not None
    ]


def _described(
    name: str, times: int, infos: list[CredentialInfo]
) -> DescribeUserScramCredentialsResult:
    found = DescribeUserScramCredentialsResult(user=name)
    if times > 1:
        found.error_code = ErrorCode.DUPLICATE_RESOURCE
        found.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif not infos:
        found.error_code = ErrorCode.RESOURCE_NOT_FOUND
        found.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        found.credential_infos = infos
    return found


async def alter_user_scram_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Keep and forget credentials; answered when the change is durable."""
    asked: list[_Change] = [*request.deletions, *request.upsertions]
    times = Counter(each.name for each in asked)
    results = {name: AlterUserScramCredentialsResult(user=name) for name in times}
    steps: list[tuple[_Change, ScramCredential | None]] = []
    slices = Slices(context.node.env.clock)
    for each in asked:
        try:
            if times[each.name] > 1:
                raise Refusal(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
            steps.append((each, _checked(each)))
        except Refusal as why:
            _say(results[each.name], why)
        await slices.rest()

    def change(kept: _Kept) -> None:
        for each, made in steps:
            try:
                _change_one(kept, each, made)
            except Refusal as why:
                _say(results[each.name], why)

    try:
        await context.node.rules.change_credentials(change)
    except TidelogError as error:
        for result in results.values():
            _say(result, refusal_of(error))
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _say(result: AlterUserScramCredentialsResult, why: Refusal) -> None:
    result.error_code, result.error_message = why.error_code, why.message


def _checked(asked: _Change) -> ScramCredential | None:
    """What is to be kept, None for a deletion; raises Refusal where the request is wrong."""
    if not asked.name:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(asked.name.encode()) > NAME_BYTES_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username is too long")
    if asked.mechanism not in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(asked, ScramCredentialDeletion):
        return None
    if asked.iterations < ITERATIONS_MIN:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > ITERATIONS_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    sizes = len(asked.salt), len(asked.salted_password)
    if not all(1 <= size <= SALT_BYTES_MAX for size in sizes):
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt or salted password of a bad size")
    mechanism = ScramMechanism(asked.mechanism)
    salt, salted = bytes(asked.salt), bytes(asked.salted_password)
    return credential_of(mechanism, salt, asked.iterations, salted)


def _change_one(kept: _Kept, asked: _Change, made: ScramCredential | None) -> None:
    """Make one change that has been checked; raises Refusal where it does not fit."""
    key = (asked.name, asked.mechanism)
    if made is None:
        if kept.pop(key, None) is None:
            text = "Attempt to delete a user credential that does not exist"
            raise Refusal(ErrorCode.RESOURCE_NOT_FOUND, text)
        return
    if key not in kept and len(kept) >= USERS_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"There are {USERS_MAX} credentials already")
    kept[key] = made
