"""A token issuer's keys and key set, and valid and invalid tokens."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

CURVES: Final = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
SIZES: Final = {"ES256": 32, "ES384": 48, "ES512": 66}
HASHES: Final = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


def pack(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _packed(number: int, size: int) -> str:
    return pack(number.to_bytes(size, "big"))


class RsaKey:
    """A key for the RS and PS algorithms."""

    def __init__(self, key_id: str | None, bits: int = 2048) -> None:
        self.key_id = key_id
        self._bits = bits
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=bits)

    def shown(self, **more: object) -> dict[str, object]:
        """Return the key's entry in a key set."""
        numbers = self._key.public_key().public_numbers()
        found: dict[str, object] = {
            "kty": "RSA",
            "n": _packed(numbers.n, self._bits // 8),
            "e": _packed(numbers.e, 3),
        }
        return found | ({} if self.key_id is None else {"kid": self.key_id}) | more

    def sign(self, algorithm: str, data: bytes) -> bytes:
        """Return a signature."""
        kind = HASHES[algorithm[2:]]
        if algorithm.startswith("PS"):
            salted = padding.PSS(padding.MGF1(kind), padding.PSS.DIGEST_LENGTH)
            return self._key.sign(data, salted, kind)
        return self._key.sign(data, padding.PKCS1v15(), kind)


class EcKey:
    """A key for one of the ES algorithms."""

    def __init__(self, key_id: str | None, algorithm: str) -> None:
        self.key_id = key_id
        self._size = SIZES[algorithm]
        self._key = ec.generate_private_key(CURVES[algorithm])
        self._curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm]

    def shown(self, **more: object) -> dict[str, object]:
        """Return the key's entry in a key set."""
        numbers = self._key.public_key().public_numbers()
        found: dict[str, object] = {
            "kty": "EC",
            "crv": self._curve,
            "x": _packed(numbers.x, self._size),
            "y": _packed(numbers.y, self._size),
        }
        return found | ({} if self.key_id is None else {"kid": self.key_id}) | more

    def sign(self, algorithm: str, data: bytes) -> bytes:
        """Return a signature."""
        found = self._key.sign(data, ec.ECDSA(HASHES[algorithm[2:]]))
        r, s = utils.decode_dss_signature(found)
        return r.to_bytes(self._size, "big") + s.to_bytes(self._size, "big")


class Secret:
    """A shared secret that signs by HMAC; no broker may accept such a signature."""

    def __init__(self, key_id: str | None, secret: bytes) -> None:
        self.key_id = key_id
        self._secret = secret

    def sign(self, algorithm: str, data: bytes) -> bytes:
        """Return an HMAC as the signature, or b"" for the algorithm `none`."""
        if algorithm.lower() == "none":
            return b""
        return hmac.new(self._secret, data, hashlib.sha256).digest()


Signer = RsaKey | EcKey | Secret


def key_set(*shown: Mapping[str, object]) -> bytes:
    """Return a key set."""
    return json.dumps({"keys": list(shown)}).encode()


def token(
    key: Signer,
    algorithm: str,
    claims: Mapping[str, object],
    *,
    header: Mapping[str, object] | None = None,
) -> str:
    """Return a token; `header` adds or replaces fields of the token's header."""
    head: dict[str, object] = {"alg": algorithm, "typ": "JWT"}
    if key.key_id is not None:
        head["kid"] = key.key_id
    head |= header or {}
    body = ".".join(pack(json.dumps(part).encode()) for part in (head, dict(claims)))
    return f"{body}.{pack(key.sign(algorithm, body.encode()))}"
