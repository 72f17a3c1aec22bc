"""Public keys in a JSON Web Key Set, and the signatures that each may have made.

A key counts for the algorithms of its own kind alone, so no header of a token can make another use
of it. Secrets (`oct`) are never keys here, and there is no algorithm `none`.

Source: RFC 7517, RFC 7518, RFC 8725 (what went wrong with others).
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.types import Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    # By which algorithms a key may sign, and the key.
    _Read = tuple[frozenset[str], RSAPublicKey | EllipticCurvePublicKey]

RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# The only curve of each, and the bytes of one number on it.
EC_ALGORITHMS: Final = {"ES256": ("P-256", 32), "ES384": ("P-384", 48), "ES512": ("P-521", 66)}
ALGORITHMS: Final = (*RSA_ALGORITHMS, *EC_ALGORITHMS)
KEYS_MAX: Final = 256
RSA_BITS_MIN: Final = 2048
# Larger ones take long, which whoever asks must not be able to make us.
RSA_BITS_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key.

    Attributes:
        key_id: Its name, None where it has none.
        algorithms: By which it may sign.
        key: The key itself.
    """

    key_id: str | None
    algorithms: frozenset[str]
    key: "RSAPublicKey | EllipticCurvePublicKey"

    def has_signed(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether a signature is this key's, by an algorithm that it may use."""
        from cryptography.exceptions import InvalidSignature

        if algorithm not in self.algorithms:
            return False
        try:
            _verify(self.key, algorithm, signed, signature)
        except (InvalidSignature, ValueError):
            return False
        return True


def _verify(
    key: "RSAPublicKey | EllipticCurvePublicKey", algorithm: str, signed: bytes, signature: bytes
) -> None:
    """Raise InvalidSignature, or ValueError, where the signature is another's."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

    known: dict[str, hashes.HashAlgorithm] = {
        "256": hashes.SHA256(),
        "384": hashes.SHA384(),
        "512": hashes.SHA512(),
    }
    made = known[algorithm[2:]]
    if isinstance(key, rsa.RSAPublicKey):
        if algorithm.startswith("PS"):
            salted = padding.PSS(padding.MGF1(made), padding.PSS.DIGEST_LENGTH)
            key.verify(signature, signed, salted, made)
        else:
            key.verify(signature, signed, padding.PKCS1v15(), made)
        return
    size = EC_ALGORITHMS[algorithm][1]
    if len(signature) != 2 * size:
        raise ValueError("a signature of another length")
    r, s = (int.from_bytes(part, "big") for part in (signature[:size], signature[size:]))
    key.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(made))


def unpack(text: str) -> bytes:
    """Base64url without padding; raises ValueError for anything else."""
    try:
        found = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("no base64url") from error
    if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != text:
        raise ValueError("no base64url")
    return found


def read_json(data: Buffer) -> Mapping[str, object]:
    """An object without names that come twice; raises ValueError for anything else."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name that comes twice")
        return found

    def refuse(word: str) -> object:
        raise ValueError(word)

    try:
        found: object = json.loads(
            bytes(data).decode(), object_pairs_hook=once, parse_constant=refuse
        )
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def read_keys(data: Buffer) -> tuple[PublicKey, ...]:
    """The keys of a set that may have signed something; others are passed over.

    Raises:
        ValueError: It is no set, has too many keys, or none that can be used.
    """
    listed = read_json(data).get("keys")
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"a list of at most {KEYS_MAX} `keys` expected")
    found = tuple(key for each in listed if (key := _key_of(each)) is not None)
    if not found:
        raise ValueError("no key for signatures by an algorithm that is known")
    return found


def _key_of(given: object) -> PublicKey | None:
    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    operations = given.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    read = {"RSA": _rsa, "EC": _elliptic}.get(str(given.get("kty")))
    try:
        algorithms, key = (frozenset[str](), None) if read is None else read(given)
    except (ValueError, TypeError, KeyError):
        return None
    if key is None:
        return None
    if "alg" in given:
        algorithms &= {str(given["alg"])}
    key_id = given.get("kid")
    return PublicKey(key_id if isinstance(key_id, str) else None, algorithms, key)


def _number(given: Mapping[str, object], name: str) -> int:
    text = given[name]
    if not isinstance(text, str):
        raise TypeError(name)
    return int.from_bytes(unpack(text), "big")


def _rsa(given: Mapping[str, object]) -> "_Read":
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    modulus, exponent = _number(given, "n"), _number(given, "e")
    if not RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX or exponent.bit_length() > 32:
        raise ValueError("a key of another size")
    return frozenset(RSA_ALGORITHMS), RSAPublicNumbers(exponent, modulus).public_key()


def _elliptic(given: Mapping[str, object]) -> "_Read":
    from cryptography.hazmat.primitives.asymmetric import ec

    curves: dict[str, ec.EllipticCurve] = {
        "P-256": ec.SECP256R1(),
        "P-384": ec.SECP384R1(),
        "P-521": ec.SECP521R1(),
    }
    name = str(given["crv"])
    x, y = _number(given, "x"), _number(given, "y")
    numbers = ec.EllipticCurvePublicNumbers(x, y, curves[name])
    algorithms = frozenset(each for each, (curve, _) in EC_ALGORITHMS.items() if curve == name)
    return algorithms, numbers.public_key()
