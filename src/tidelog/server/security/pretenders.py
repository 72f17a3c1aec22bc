"""What SCRAM tells of users that there are not: salts and iterations like those of others' there.

A name is drawn the number of iterations and the form of its salt by a keyed hash, as often as users
have them: so neither tells anything. Drawn once, it keeps them when users come and go, but for the
names that have to move for the others' shares (rendezvous hashing with weights). Pure.
"""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import log
from typing import Final, NamedTuple

# The forms that most users have; more of them would be work for each log-in.
SHAPES_MAX: Final = 16
# Salts of Kafka's own clients: a number of so many bits, in digits and small letters.
_TEXT_BITS: Final = 130
_TEXT: Final = re.compile(rb"[0-9a-z]{1,26}")
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class Shape(NamedTuple):
    """What anybody may hear of a user.

    Attributes:
        iterations: How often the password was hashed.
        salt_bytes: How long the salt is; 0 for one as Kafka's own clients make them.
    """

    iterations: int
    salt_bytes: int


def shape_of(iterations: int, salt: bytes) -> Shape:
    """A user's shape."""
    return Shape(iterations, 0 if _TEXT.fullmatch(salt) else len(salt))


def most_common(shapes: Iterable[Shape]) -> Mapping[Shape, int]:
    """How many have which shape, at most `SHAPES_MAX` of them; an equal count goes by the shape."""
    counts = Counter(shapes)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:SHAPES_MAX])


def draw_shape(key: bytes, user: str, shapes: Mapping[Shape, int]) -> Shape:
    """The shape of a user that there is not; there must be some."""
    return min(shapes, key=lambda shape: _lot(key, user, shape) / shapes[shape])


def _lot(key: bytes, user: str, shape: Shape) -> float:
    """A number that is drawn as a waiting time is, so the shortest follow the weights."""
    text = f"{shape.iterations},{shape.salt_bytes},{user}"
    drawn = int.from_bytes(hmac.digest(key, text.encode(), "sha256")[:8], "big")
    return -log((drawn + 1) / (1 << 64))


def make_salt(shape: Shape, secret: bytes) -> bytes:
    """A salt of a shape, always the same for a secret."""
    if shape.salt_bytes:
        return hashlib.shake_256(secret).digest(shape.salt_bytes)
    size_bytes = -(-_TEXT_BITS // 8)
    number = int.from_bytes(hashlib.shake_256(secret).digest(size_bytes), "big")
    return _in_base_36(number >> (8 * size_bytes - _TEXT_BITS))


def _in_base_36(number: int) -> bytes:
    digits = bytearray()
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
