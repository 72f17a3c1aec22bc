"""Reads client settings from a properties file, the format of `--command-config` in Kafka's tools.

A setting of a Java client is translated to a setting of librdkafka. A setting that has no meaning
for librdkafka is ignored (`WITHOUT_MEANING`). If librdkafka can't use the value of a setting, an
error names the setting to use instead. All other settings are passed on unchanged.
"""

import re
from collections.abc import Mapping
from typing import Final

from tidelog.errors import ConfigError

# Maximum number of records that a consumer takes from its queue at a time.
POLL_RECORDS: Final = 5_000

# Maximum size of a producer's queue, in KiB; a caller or task waits while the queue is full.
QUEUE_KBYTES: Final = 64 << 10

_LINE: Final = re.compile(r"((?:\\.|[^=:\s\\])+)\s*[=:\s]?\s*(.*)", re.DOTALL)
_JAAS_MODULE: Final = re.compile(r"([\w.$]+)\s+required\s*(.*?);?\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

# librdkafka's names of Java's settings whose values have the same meaning.
_RENAMED: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
}

# Settings of Java's clients that are ignored, because a tool with few requests doesn't need them,
# or because another option gives the value (`bootstrap.servers`).
WITHOUT_MEANING: Final = frozenset(
    {
        "default.api.timeout.ms",
        "request.timeout.ms",
        "retries",
        "key.deserializer",
        "value.deserializer",
        "key.serializer",
        "value.serializer",
        "ssl.protocol",
        "ssl.enabled.protocols",
        "sasl.client.callback.handler.class",
        "ssl.truststore.password",
        "ssl.truststore.type",
        "ssl.keystore.type",
        "bootstrap.servers",
    }
)

_JKS: Final = "librdkafka reads PEM; convert the file (keytool -importkeystore, openssl pkcs12)"


def client_settings(text: str) -> dict[str, str]:
    """Return librdkafka's settings for the text of a properties file.

    Raises:
        ConfigError: librdkafka can't use the value of a setting, such as a Java key store; the
            message names the setting to use instead.
    """
    return translate_settings(read_properties(text))


def translate_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for settings of a Java client; raises ConfigError."""
    settings: dict[str, str] = {}
    for key, value in properties.items():
        if key not in WITHOUT_MEANING:
            settings |= _translated(key, value, properties)
    return settings


def read_properties(text: str) -> dict[str, str]:
    """Return names and values of a Java properties file.

    If a name occurs twice, its last value counts.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        parts = _LINE.fullmatch(line)
        if parts is not None:
            properties[_unescaped(parts[1])] = _unescaped(parts[2].strip())
    return properties


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments and blank lines.

    A backslash at the end continues a line.
    """
    lines: list[str] = []
    joined = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        lines.append(joined)
        joined = ""
    return [*lines, joined] if joined else lines


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", plain, text, flags=re.DOTALL)


def _translated(key: str, value: str, properties: Mapping[str, str]) -> dict[str, str]:
    if key in _RENAMED:
        return {_RENAMED[key]: value}
    if key == "sasl.jaas.config":
        return _jaas(value)
    if key == "ssl.endpoint.identification.algorithm":
        return {key: value or "none"}
    if key == "ssl.truststore.location":
        return {"ssl.ca.location": _pem(key, value, properties.get("ssl.truststore.type", ""))}
    if key == "ssl.keystore.location":
        return _keystore(key, value, properties.get("ssl.keystore.type", ""))
    return {key: value}


def _pem(key: str, path: str, kind: str) -> str:
    if kind.upper() == "PEM" or path.lower().endswith((".pem", ".crt", ".cer")):
        return path
    raise ConfigError(key, path, f"{_JKS} and give ssl.ca.location=FILE.pem")


def _keystore(key: str, path: str, kind: str) -> dict[str, str]:
    if kind.upper() == "PKCS12" or path.lower().endswith((".p12", ".pfx")):
        return {key: path}
    if kind.upper() == "PEM" or path.lower().endswith(".pem"):
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    allowed = f"{_JKS} and give ssl.certificate.location and ssl.key.location, or a .p12 file"
    raise ConfigError(key, path, allowed)


def _jaas(value: str) -> dict[str, str]:
    """Return user and password from the value of `sasl.jaas.config`; errors never contain them."""
    module = _JAAS_MODULE.fullmatch(value.strip())
    name = module[1].rpartition(".")[2] if module else ""
    if module is None or name not in ("PlainLoginModule", "ScramLoginModule"):
        allowed = (
            "librdkafka supports only the login modules PLAIN and SCRAM; for others give"
            " librdkafka's own settings (sasl.username, sasl.oauthbearer.*, sasl.kerberos.*)"
        )
        raise ConfigError("sasl.jaas.config", name or None, allowed)
    options = {
        match[1]: re.sub(r"\\(.)", r"\1", match[2])
        if match[2] is not None
        else match[3] or match[4]
        for match in _JAAS_OPTION.finditer(module[2])
    }
    if not {"username", "password"} <= options.keys():
        raise ConfigError("sasl.jaas.config", name, "needs username=... and password=...")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}
