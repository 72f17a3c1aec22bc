"""Principals of TLS clients, and the delay of responses to failed logins.

The subject of a certificate is written as Java writes RFC 2253, because mapping rules are made for
that form. The most specific part comes first: `CN=kafka1,OU=streams,O=example,C=DE`. Some
attributes without a name in RFC 2253, such as the email address, appear as their number and the
hexadecimal DER of their value.

Each failed login from an address doubles the delay of the response to the address's next failed
login, up to a maximum. A login with the right credentials is never delayed, so an attacker doesn't
slow down other clients of the address. For each address, one failure is forgotten every half
minute.

Source: Kafka 4.3's SslPrincipalMapper, KIP-371; RFC 2253, RFC 4514 (escapes).
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeAlias

from tidelog.env import Clock
from tidelog.errors import ConfigError
from tidelog.lazy_dataclass import dataclass
from tidelog.server.security.sasl import LoginFailed

# Subject of a certificate, in the form that `getpeercert` of a TLS socket returns. Each part of the
# subject has one or more pairs of a name and a value.
Subject: TypeAlias = Iterable[Iterable[tuple[str, str]]]

_SETTING: Final = "ssl.principal.mapping.rules"

_WORDS: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
    "UID": "UID",
}

# Certificate attributes for which RFC 2253 defines no name: object identifier, and the tag of the
# DER string type (IA5, printable or UTF-8).
_NUMBERS: Final = {
    "emailAddress": ("1.2.840.113549.1.9.1", 0x16),
    "serialNumber": ("2.5.4.5", 0x13),
    "title": ("2.5.4.12", 0x0C),
    "givenName": ("2.5.4.42", 0x0C),
    "surname": ("2.5.4.4", 0x0C),
    "dnQualifier": ("2.5.4.46", 0x13),
}

_SPECIAL: Final = re.compile(r'([,+"\\<>;=])')

_RULE: Final = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)"
)

_GROUP: Final = re.compile(r"\\(.)|\$(\d)")
_DER_SHORT_MAX: Final = 127


def name_of(subject: Subject) -> str:
    """Format a subject according to RFC 2253, as Java does."""
    parts = ["+".join(_pair(name, value) for name, value in part) for part in subject]
    return ",".join(reversed(parts))


def _pair(name: str, value: str) -> str:
    word = _WORDS.get(name)
    if word is not None:
        return f"{word}={_escaped(value)}"
    number = _NUMBERS.get(name)
    raw = value.encode()
    if number is None or len(raw) > _DER_SHORT_MAX:
        return f"{name}={_escaped(value)}"
    return f"{number[0]}=#{bytes((number[1], len(raw))).hex()}{raw.hex()}"


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text[:1] in {"#", " "}:
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text


@dataclass(frozen=True, slots=True)
class Rule:
    r"""Mapping rule: if the pattern matches a whole name, the name is replaced.

    Attributes:
        pattern: Pattern to match; None for DEFAULT, which keeps every name.
        replacement: Replacement, with `\g<1>` for the match of the first group.
        case: `L` for lower case, `U` for upper case, or empty.
    """

    pattern: "re.Pattern[str] | None"
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the short name for a certificate's name; None if the rule does not match."""
        if self.pattern is None:
            return name
        matched = self.pattern.fullmatch(name)
        if matched is None:
            return None
        text = matched.expand(self.replacement)
        return {"L": text.lower(), "U": text.upper()}.get(self.case, text)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse `ssl.principal.mapping.rules`; raises ConfigError if a rule is invalid."""
    text = text.strip() or "DEFAULT"
    rules: list[Rule] = []
    at = 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            reason = f"rule {len(rules) + 1} is neither DEFAULT nor RULE:pattern/replacement/[LU]"
            raise ConfigError(_SETTING, text, reason)
        at = match.end()
        rules.append(Rule(None) if match[1] else _rule(match[2], match[3], match[4]))
    return tuple(rules)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(_SETTING, pattern, f"invalid regular expression: {error}") from error

    def group(match: "re.Match[str]") -> str:
        if match[1] is not None:
            return match[1] if match[1] != "\\" else "\\\\"
        return f"\\g<{match[2]}>" if int(match[2]) <= compiled.groups else match[0]

    return Rule(compiled, _GROUP.sub(group, replacement), case)


def short_name(rules: Sequence[Rule], name: str) -> str:
    """Return the short name that the first matching rule makes from a certificate's name.

    Raises:
        LoginFailed: No rule matches the certificate's name.
    """
    for rule in rules:
        short = rule.apply(name)
        if short is not None:
            return short
    raise LoginFailed(f"no rule of {_SETTING} matches the certificate's subject")


# Maximum delay in ms of the response to a failed login. It is shorter than the time limit for a
# login, so the client gets the response before the broker closes the connection. If
# `connection.failed.authentication.delay.ms` is larger than this maximum, that setting is the
# maximum.
DELAY_MAX_MS: Final = 5000

# Time in ms after which one failure is forgotten. Several failures are forgotten one by one, each
# after this time.
FORGOTTEN_MS: Final = 30_000

# Maximum number of remembered addresses. Beyond this number, the address whose last failure is
# oldest is forgotten.
ADDRESSES_MAX: Final = 10_000

_STEPS_MAX: Final = 16

# Failures from IPv6 addresses are counted per network with a prefix of this many bits, because one
# client usually has all addresses of such a network.
_PREFIX_BITS: Final = 64


class FailedLogins:
    """Counts of failed logins by address. Used only in the event loop's thread."""

    def __init__(self, clock: Clock) -> None:
        """Create an instance without counted failures."""
        self._clock = clock
        # Failed logins by address; the address whose last failure is oldest comes first. A value
        # has the number of failures that are not yet forgotten, and the monotonic time in ms at
        # which the last failure was forgotten.
        self._failures: dict[str, tuple[int, int]] = {}

    def delay_ms(self, host: str, base_ms: int) -> int:
        """Count a failed login, and return the delay in ms of the response to it.

        Args:
            host: Address of the client.
            base_ms: Delay after the first failure (`connection.failed.authentication.delay.ms`).
                The delay doubles with each remembered failure, up to `DELAY_MAX_MS`, but is never
                below `base_ms`.
        """
        now_ms = self._clock.monotonic_ms()
        key = _network(host)
        steps, since_ms = self._failures.pop(key, (0, now_ms))
        forgotten = (now_ms - since_ms) // FORGOTTEN_MS
        steps = max(steps - forgotten, 0)
        since_ms = now_ms if steps == 0 else since_ms + forgotten * FORGOTTEN_MS
        self._failures[key] = (min(steps + 1, _STEPS_MAX), since_ms)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        return max(min(base_ms << steps, DELAY_MAX_MS), base_ms)


def _network(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a Unix socket
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> _PREFIX_BITS)
    return host
