"""Settings of the doors: where the broker listens, who may come in, who may do what.

Names, defaults and ranges are Kafka 4.3's where Kafka has the setting, but for what is said in
docs/differences.md. Source: Kafka 4.3's `SocketServerConfigs`, `BrokerSecurityConfigs`,
`SaslConfigs`, `SslConfigs`; docs/security.md.
"""

from typing import Final

from tidelog.config.keys import ConfigKey
from tidelog.config.values import (
    FLAG,
    PASSWORD,
    TEXT,
    TEXTS,
    ValueKind,
    whole_number,
    word,
    word_list,
)

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# What sasl.enabled.mechanisms may name.
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# By which tokens may be signed; with a secret, or not at all, they never may.
TOKEN_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
)
# Kafka's authorizer, whose rules ours are.
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _key(name: str, kind: ValueKind, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


_LISTENERS: Final = (
    _key(
        "listeners",
        TEXTS,
        "PLAINTEXT://127.0.0.1:9092",
        "Where it listens: NAME://HOST:PORT, comma separated.",
    ),
    _key(
        "advertised.listeners",
        TEXTS,
        "",
        "What clients of each listener are told to connect to, by the same names; as listeners"
        " where empty.",
    ),
    _key(
        "listener.security.protocol.map",
        TEXT,
        ",".join(f"{name}:{name}" for name in PROTOCOLS),
        f"What each listener speaks, NAME:PROTOCOL, comma separated; {', '.join(PROTOCOLS)}.",
    ),
)

_SASL: Final = (
    _key(
        "sasl.enabled.mechanisms",
        word_list(*MECHANISMS),
        "",
        "How clients of SASL listeners may log in; such a listener needs one or more.",
    ),
    _key(
        "tidelog.sasl.plain.users.file",
        TEXT,
        "",
        "Users of PLAIN: a file of lines NAME=PASSWORD, the password hashed or not; read again when"
        " it changes.",
    ),
    _key(
        "connections.max.reauth.ms",
        whole_number("long", 0),
        "0",
        "A client that has logged in has to do so again after so long. 0 for never.",
    ),
    _key(
        "connection.failed.authentication.delay.ms",
        whole_number("int", 0),
        "100",
        "How long the answer to a failed log-in is held back.",
    ),
)

_TOKENS: Final = (
    _key(
        "sasl.oauthbearer.jwks.endpoint.url",
        TEXT,
        "",
        "Keys of those who make tokens: file:///PATH of a JSON Web Key Set, read again when it"
        " changes, or https://HOST/...",
    ),
    _key(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        whole_number("long", 1),
        "3600000",
        "How often keys are fetched from an address; for a key that is not known also between.",
    ),
    _key(
        "sasl.oauthbearer.expected.audience",
        TEXTS,
        "",
        "Whom tokens are for: one of these, comma separated; any where empty.",
    ),
    _key("sasl.oauthbearer.expected.issuer", TEXT, "", "Who makes tokens; anybody where empty."),
    _key(
        "sasl.oauthbearer.clock.skew.seconds",
        whole_number("int", 0),
        "30",
        "How far apart the clocks of the broker and of those who make tokens may be.",
    ),
    _key("sasl.oauthbearer.sub.claim.name", TEXT, "sub", "Which claim of a token names the user."),
    _key(
        "tidelog.sasl.oauthbearer.algorithms",
        word_list(*TOKEN_ALGORITHMS),
        ",".join(TOKEN_ALGORITHMS),
        "By which algorithms tokens may be signed.",
    ),
)

_TLS: Final = (
    _key(
        "ssl.keystore.location",
        TEXT,
        "",
        "The broker's key and certificates in one PEM file; read again when it changes.",
    ),
    _key("ssl.keystore.type", word("PEM"), "PEM", "Form of that file."),
    _key("ssl.key.password", PASSWORD, "", "What its key is encrypted with; nothing where empty."),
    _key(
        "ssl.truststore.location",
        TEXT,
        "",
        "Certificates, as PEM, of those who vouch for clients; read again when it changes.",
    ),
    _key("ssl.truststore.type", word("PEM"), "PEM", "Form of that file."),
    _key(
        "ssl.client.auth",
        word("none", "requested", "required"),
        "none",
        "Whether clients of SSL listeners show a certificate.",
    ),
    _key(
        "ssl.enabled.protocols",
        word_list("TLSv1.2", "TLSv1.3"),
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are spoken.",
    ),
    _key(
        "ssl.principal.mapping.rules",
        TEXT,
        "DEFAULT",
        "What a certificate's owner is called: RULE:pattern/replacement/[LU] or DEFAULT, comma"
        " separated; the first that is about a subject counts.",
    ),
)

_RIGHTS: Final = (
    _key(
        "authorizer.class.name",
        word("", STANDARD_AUTHORIZER),
        "",
        "With Kafka's name for it, ACLs decide who may do what; without, everybody may everything.",
    ),
    _key("super.users", TEXT, "", "Principals that may do everything: User:NAME;User:NAME."),
    _key(
        "allow.everyone.if.no.acl.found",
        FLAG,
        "false",
        "What holds for a resource that no ACL is about.",
    ),
)

DOOR_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    *_LISTENERS,
    *_SASL,
    *_TOKENS,
    *_TLS,
    *_RIGHTS,
)
