"""Clients of a secured broker: certificates, passwords, tokens, authenticated connections."""

import base64
import hashlib
import hmac
import json
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.session import ADVERTISED, NOW_MS
from tests.corpus.exchanges.values import Tree, data
from tests.worlds.brokers.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSWORD: Final = "correct horse"
# Users of PLAIN. ANONYMOUS uses the listener PLAINTEXT and has all rights.
USERS: Final = ("alice", "reader", "mallory")
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_KEY_BITS: Final = 2048


def listeners(*protocols: str) -> dict[str, str]:
    """Return settings of listeners that bind to free ports and advertise fixed addresses."""
    host, _, port = ADVERTISED.partition(":")
    told = (f"{name}://{host}:{int(port) + n}" for n, name in enumerate(protocols))
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in protocols),
        "advertised.listeners": ",".join(told),
    }


def secured(folder: Path) -> dict[str, str]:
    """Return settings of a broker with all listeners, all mechanisms and an authorizer."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in USERS))
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [shown_key()]}))
    authority.issue("alice", unit="Streams")
    return {
        **listeners(*PROTOCOLS),
        "ssl.keystore.location": str(authority.issue("server")),
        "ssl.truststore.location": str(authority.path),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Streams$/$1/L,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "corpus",
        "tidelog.sasl.plain.users.file": str(users),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }


def context(folder: Path, *, shows: str | None = None) -> ssl.SSLContext:
    """Return a client's TLS context, with the certificate named `shows`, if given."""
    made = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    if shows is not None:
        made.load_cert_chain(str(folder / f"{shows}.pem"))
    return made


# -- PLAIN and SCRAM -----------------------------------------------------------------------------


def plain(user: str, password: str = PASSWORD) -> bytes:
    """Return a message of PLAIN."""
    return f"\0{user}\0{password}".encode()


def logged_in(line: Line, user: str) -> Line:
    """Return a connection authenticated by PLAIN; its authentication is not recorded."""
    line.quiet("sasl_handshake", 1, {"mechanism": "PLAIN"})
    answer = line.quiet("sasl_authenticate", 2, {"auth_bytes": plain(user)})
    assert answer["error_code"] == 0, answer
    return line


@dataclass(frozen=True)
class Scram:
    """A client of SCRAM with a constant nonce."""

    user: str
    password: str
    kind: str = "sha256"
    nonce: str = "corpusnonce"

    @property
    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    @property
    def _bare(self) -> str:
        return f"n={self.user},r={self.nonce}"

    def last(self, told: bytes) -> bytes:
        """Return the client's last message, computed from the broker's first message `told`."""
        parts = dict(part.split("=", 1) for part in told.decode().split(","))
        salt, rounds = base64.b64decode(parts["s"]), int(parts["i"])
        salted = hashlib.pbkdf2_hmac(self.kind, self.password.encode(), salt, rounds)
        key = hmac.digest(salted, b"Client Key", self.kind)
        end = f"c=biws,r={parts['r']}"
        signed = f"{self._bare},{told.decode()},{end}".encode()
        mask = hmac.digest(hashlib.new(self.kind, key).digest(), signed, self.kind)
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        return f"{end},p={base64.b64encode(proof).decode()}".encode()


def scram(line: Line, mechanism: str, client: Scram, version: int = 2) -> Tree:
    """Record an authentication by SCRAM; return the last response."""
    line.ask("sasl_handshake", 1, {"mechanism": mechanism})
    told = line.ask("sasl_authenticate", version, {"auth_bytes": client.first})
    if not told or told["error_code"]:
        return told
    proof = client.last(data(told, "auth_bytes"))
    return line.ask("sasl_authenticate", version, {"auth_bytes": proof})


# -- tokens ----------------------------------------------------------------------------------------


def _is_prime(number: int, source: Random) -> bool:
    """Whether a number is prime (Miller-Rabin); wrong with a probability below 1 in 4 ** 20."""
    if any(number % small == 0 for small in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)):
        return False
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(20):
        power = pow(source.randrange(2, number - 1), odd, number)
        if power in {1, number - 1}:
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


@cache
def _key() -> rsa.RSAPrivateKey:
    """Return a key from a fixed seed, for tests only; the key is the same in each run."""
    source = Random("the key of the corpus")
    half = _KEY_BITS // 2

    def prime() -> int:
        while True:
            tried = source.getrandbits(half) | 3 << (half - 2) | 1
            if tried % 65537 != 1 and _is_prime(tried, source):
                return tried

    p, q = prime(), prime()
    d = pow(65537, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=d % (p - 1),
        dmq1=d % (q - 1),
        iqmp=pow(q, -1, p),
        public_numbers=rsa.RSAPublicNumbers(65537, p * q),
    )
    return numbers.private_key()


def _packed(given: bytes) -> str:
    return base64.urlsafe_b64encode(given).rstrip(b"=").decode()


def shown_key() -> dict[str, str]:
    """Return the public key as an entry of a JSON Web Key Set."""
    modulus = _key().public_key().public_numbers().n
    numbers = {"n": _packed(modulus.to_bytes(_KEY_BITS // 8, "big")), "e": "AQAB"}
    return {"kty": "RSA", "kid": "corpus", "alg": "RS256", **numbers}


def token(kid: str = "corpus", **claims: object) -> str:
    """Return a signed token for alice, valid for ten minutes; `claims` replace or add claims."""
    now_s = NOW_MS // 1000
    own: Mapping[str, object] = {
        "sub": "alice",
        "aud": "kafka",
        "iss": "corpus",
        "iat": now_s,
        "exp": now_s + 600,
    }
    parts = ({"alg": "RS256", "kid": kid, "typ": "JWT"}, {**own, **claims})
    body = ".".join(_packed(json.dumps(part).encode()) for part in parts)
    signature = _key().sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{body}.{_packed(signature)}"


def bearer(made: str) -> bytes:
    """Return a client's first message of OAUTHBEARER."""
    return f"n,,\x01auth=Bearer {made}\x01\x01".encode()
