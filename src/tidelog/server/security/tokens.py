"""Tokens of OAUTHBEARER: JSON Web Tokens that somebody trusted has signed.

Source: RFC 7515, RFC 7519, RFC 8725; KIP-768; behaviour of Kafka 4.3's BrokerJwtValidator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.server.security.errors import LoginFailed
from tidelog.server.security.jwks import PublicKey, read_json, unpack
from tidelog.server.security.sasl import Login

# The keys of a name, or all for None; they may have to be fetched.
FindKeys = Callable[[str | None], Sequence[PublicKey]]
_SECONDS_MAX: Final = 1 << 40
_NAME_MAX: Final = 1024
# What Java's trim takes away, and Kafka with it.
_BLANKS: Final = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token has to be.

    Attributes:
        algorithms: By which it may be signed.
        audiences: It has to be for one of these; empty for whoever.
        issuer: Who has to have made it; empty for whoever.
        skew_s: How far clocks may be apart.
        user_claim: Which claim names the user.
    """

    algorithms: frozenset[str]
    audiences: frozenset[str] = frozenset()
    issuer: str = ""
    skew_s: int = 30
    user_claim: str = "sub"


def check_token(token: str, find: FindKeys, rules: TokenRules, now_ms: int) -> Login:
    """Whose a token is.

    Raises:
        LoginFailed: It is not good. The reason shows nothing that is in it.
    """
    try:
        claims = _opened(token, find, rules.algorithms)
    except (ValueError, UnicodeError):
        raise LoginFailed("a token that is no JWT") from None
    _check_times(claims, rules, now_ms)
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise LoginFailed("a token of another issuer")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if rules.audiences and not any(isinstance(a, str) and a in rules.audiences for a in named):
        raise LoginFailed("a token for another audience")
    _check_scope(claims.get("scope"))
    user = _trimmed(claims.get(rules.user_claim))
    if not 0 < len(user) <= _NAME_MAX:
        raise LoginFailed(f"a token without a name in `{rules.user_claim}`")
    # Parts of a second don't count, as in Kafka.
    return Login(user, int(_seconds(claims, "exp")) * 1000)


def _opened(token: str, find: FindKeys, algorithms: frozenset[str]) -> Mapping[str, object]:
    """The claims, once the signature is known to be right."""
    packed_header, packed_claims, packed_signature = token.split(".")
    header = read_json(unpack(packed_header))
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise LoginFailed("a token that is signed by an algorithm that is not allowed")
    if "crit" in header or not isinstance(key_id, str | None):
        raise LoginFailed("a token whose header asks for what is not known")
    signed = f"{packed_header}.{packed_claims}".encode("ascii")
    signature = unpack(packed_signature)
    if not any(key.has_signed(algorithm, signed, signature) for key in find(key_id)):
        raise LoginFailed("a token that nobody trusted has signed")
    return read_json(unpack(packed_claims))


def _check_times(claims: Mapping[str, object], rules: TokenRules, now_ms: int) -> None:
    now_s = now_ms / 1000
    if _seconds(claims, "exp") + rules.skew_s <= now_s:
        raise LoginFailed("a token that has expired")
    _seconds(claims, "iat")  # is needed; when that was counts for nothing, as in Kafka
    if "nbf" in claims and _seconds(claims, "nbf") - rules.skew_s > now_s:
        raise LoginFailed("a token that does not hold yet")


def _check_scope(found: object) -> None:
    """Nothing comes of a scope here, but one that Kafka can't read lets nobody in."""
    if isinstance(found, str):
        found = [found]
    names = [_trimmed(each) for each in found] if isinstance(found, list) else []
    if not all(names) or len(set(names)) < len(names):
        raise LoginFailed("a token with a scope that is empty or comes twice")


def _trimmed(found: object) -> str:
    """A text without what is blank around it, empty for anything else."""
    return found.strip(_BLANKS) if isinstance(found, str) else ""


def _seconds(claims: Mapping[str, object], name: str) -> float:
    found = claims.get(name)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not 0 <= found < _SECONDS_MAX:  # type: ignore[operator]  # a number
        raise LoginFailed(f"a token without a time in `{name}`")
    return found  # type: ignore[return-value]  # the same
