"""The users of PLAIN as their file has them now."""

from typing import Final

from tidelog.env import Env
from tidelog.errors import ConfigError
from tidelog.server.security.passwords import SALT_BYTES, PlainUsers, read_users
from tidelog.server.security.watched import Watched
from tidelog.storage.files import read_file

SETTING: Final = "tidelog.sasl.plain.users.file"
FILE_BYTES_MAX: Final = 1 << 20


class PlainFile:
    """A file of users that is read again when it changes. Any thread may ask."""

    def __init__(self, env: Env, path: str) -> None:
        """Read the file.

        Raises:
            ConfigError: It can't be read, or a line is no user.
        """
        self._env = env
        self._path = path
        self._users = Watched(env.files, path, what="users", read=self._read)

    def is_user(self, name: str, password: str) -> bool:
        """Whether there is such a user with this password; an unknown one costs as much."""
        return self._users.newest().is_user(name, password)

    def _read(self) -> PlainUsers:
        try:
            content = read_file(self._env.files, self._path, limit=FILE_BYTES_MAX)
            text = content.decode()
        except OSError as error:
            reason = f"can't be read: {error.strerror or error}"
            raise ConfigError(SETTING, self._path, reason) from error
        except UnicodeDecodeError:
            raise ConfigError(SETTING, self._path, "is no UTF-8") from None
        salt = self._env.random.randbytes(SALT_BYTES)
        return read_users(text, self._path, salt)
