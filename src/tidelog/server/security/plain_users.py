"""Users file of SASL/PLAIN.

A line is `NAME=PASSWORD`, or `NAME={pbkdf2-sha256}ITERATIONS:SALT:HASH` with salt and hash in
base64. The user's name ends at the first `=` of a line. `str(hashed(...))` returns the hashed form,
which is the part after `NAME=`. Empty lines and lines that start with `#` are ignored. The file is
reread when it changes. Passwords in plain text are hashed when the file is read, and hashes are
compared in constant time.

Source: RFC 4616; Kafka's PlainLoginModule (`user_NAME=PASSWORD`).
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from tidelog.env import Env
from tidelog.errors import ConfigError
from tidelog.lazy_dataclass import dataclass
from tidelog.server.security.tls import WatchedFiles
from tidelog.storage.files import read_file

ITERATIONS: Final = 4096
ITERATIONS_MAX: Final = 10_000_000
SALT_BYTES: Final = 16
PREFIX: Final = "{pbkdf2-sha256}"

# Maximum length of a password in bytes. A longer password is refused before hashing.
PASSWORD_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True, repr=False)
class HashedPassword:
    """Hash of a password, for comparison."""

    salt: bytes
    iterations: int
    digest: bytes

    def is_password(self, password: str, iterations: int) -> bool:
        """Whether the password matches. A mismatch takes as long as a match.

        Args:
            password: Password to check.
            iterations: Number of iterations to compute, at least as many as the hash has. The
                number is the same for all users, so that the duration does not show whether a user
                exists or how many iterations the user's hash has.
        """
        digest = _hash(password, self.salt, self.iterations)
        _hash(password, self.salt, iterations - self.iterations + 1)
        return hmac.compare_digest(digest, self.digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"{PREFIX}{self.iterations}:{salt}:{digest}"


def hashed(password: str, salt: bytes, iterations: int = ITERATIONS) -> HashedPassword:
    """Hash a password. In the users file, the result as text (`str`) can replace the password."""
    return HashedPassword(salt, iterations, _hash(password, salt, iterations))


def _hash(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


class PlainUsers:
    """Users that a users file contained when it was read."""

    def __init__(self, users: Mapping[str, HashedPassword], pretender: HashedPassword) -> None:
        """Store the users by name. An unknown user's password is compared with `pretender`."""
        self._users = users
        self._pretender = pretender

    def is_user(self, name: str, password: str) -> bool:
        """Whether the user exists and has this password.

        A password that is too long is refused at once. For all other passwords, the check takes the
        same time for all users and for unknown names: as long as for the user with the most
        iterations.
        """
        if len(password.encode()) > PASSWORD_BYTES_MAX:
            return False
        stored = self._users.get(name)
        is_match = (stored or self._pretender).is_password(password, self._pretender.iterations)
        return is_match and stored is not None


def read_users(text: str, name: str, salt: bytes) -> PlainUsers:
    """Parse the text of a users file.

    Args:
        text: Content of the file.
        name: Path of the file, for errors. The errors never show a line's content.
        salt: Salt for passwords that are not hashed in the file; `SALT_BYTES` long.

    Raises:
        ConfigError: A line is invalid. The message contains the line's number.
    """
    users: dict[str, HashedPassword] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        user, sign, secret = line.partition("=")
        if not sign or not user.strip() or not secret.strip():
            raise ConfigError(name, None, f"line {number} is not NAME=PASSWORD")
        if user.strip() in users:
            raise ConfigError(name, None, f"line {number}: duplicate user")
        users[user.strip()] = _parse_password(secret.strip(), name, number, salt)
    # Every check computes as many iterations as the hash with the most iterations needs, so that a
    # fast response does not reveal an unknown name.
    slowest = max((stored.iterations for stored in users.values()), default=ITERATIONS)
    return PlainUsers(users, hashed("", salt, slowest))


def _parse_password(secret: str, name: str, number: int, salt: bytes) -> HashedPassword:
    if not secret.startswith(PREFIX):
        return hashed(secret, salt)
    parts = secret.removeprefix(PREFIX).split(":")
    form = f"line {number} is not {PREFIX}ITERATIONS:SALT:HASH"
    if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
        raise ConfigError(name, None, form)
    iterations = int(parts[0]) if len(parts[0]) <= len(str(ITERATIONS_MAX)) else 0
    if not 1 <= iterations <= ITERATIONS_MAX:
        raise ConfigError(name, None, f"line {number}: 1 to {ITERATIONS_MAX} iterations allowed")
    try:
        stored_salt, digest = (base64.b64decode(part, validate=True) for part in parts[1:])
    except ValueError:  # b64decode also raises ValueError for text that is not ASCII
        raise ConfigError(name, None, form) from None
    if len(digest) != hashlib.sha256().digest_size:
        raise ConfigError(name, None, form)
    return HashedPassword(stored_salt, iterations, digest)


SETTING: Final = "tidelog.sasl.plain.users.file"
FILE_BYTES_MAX: Final = 1 << 20


class PlainFile:
    """Users file that is reread when it changes. Thread-safe."""

    def __init__(self, env: Env, path: str) -> None:
        """Read the file.

        Raises:
            ConfigError: The file can't be read or is not UTF-8, or a line is invalid.
        """
        self._env = env
        self._path = path
        self._users = WatchedFiles(env.files, path, name="users", read=self._read)

    def is_user(self, name: str, password: str) -> bool:
        """Whether the user exists and has this password.

        The check takes as long for an unknown user as for a known user.
        """
        return self._users.newest().is_user(name, password)

    def _read(self) -> PlainUsers:
        try:
            content = read_file(self._env.files, self._path, limit=FILE_BYTES_MAX)
            text = content.decode()
        except OSError as error:
            reason = f"can't be read: {error.strerror or error}"
            raise ConfigError(SETTING, self._path, reason) from error
        except UnicodeDecodeError:
            raise ConfigError(SETTING, self._path, "is not valid UTF-8") from None
        salt = self._env.random.randbytes(SALT_BYTES)
        return read_users(text, self._path, salt)
