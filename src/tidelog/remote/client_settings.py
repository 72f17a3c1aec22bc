"""Reads client settings from a properties file, the format of `--command-config` in Kafka's tools.

A setting of a Java client is translated to a setting of librdkafka. A setting that has no meaning
for librdkafka is ignored (`WITHOUT_MEANING`). If librdkafka can't use the value of a setting, an
error names the setting to use instead. All other settings are passed on unchanged.
"""

import re
from collections.abc import Mapping
from typing import Final

from tidelog.config.files import read_properties
from tidelog.errors import ConfigError

# Maximum number of records that a consumer takes from its queue at a time.
POLL_RECORDS: Final = 5_000

# Maximum size of a producer's queue, in KiB; a caller or task waits while the queue is full.
QUEUE_KBYTES: Final = 64 << 10

_JAAS_MODULE: Final = re.compile(r"([\w.$]+)\s+required\s*(.*?);?\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))")

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
        ConfigError: A line is invalid; or librdkafka can't use the value of a setting, such as a
            Java key store, and the message names the setting to use instead.
    """
    return translate_settings(read_properties("client settings", text).texts)


def translate_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for settings of a Java client; raises ConfigError."""
    settings: dict[str, str] = {}
    for key, value in properties.items():
        if key not in WITHOUT_MEANING:
            settings |= _translated(key, value, properties)
    return settings


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
