"""A broker with TLS and SASL: valid and invalid authentication, and sessions that expire."""

import ssl
from pathlib import Path

from tests.corpus.exchanges.identities import (
    PASSWORD,
    Scram,
    bearer,
    context,
    plain,
    scram,
    secured,
    token,
)
from tests.corpus.exchanges.registry import FLIGHTS, flights
from tests.corpus.exchanges.scripts.configs import SHA_256, SHA_512, upsertion
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree

REAUTH_MS = 60_000
TOPIC: Tree = {"topics": [{"name": FLIGHTS}]}


def play(home: Path) -> Stage:
    """Authenticate by each mechanism and each listener."""
    keys = home / "keys"
    settings = {**secured(keys), "connections.max.reauth.ms": str(REAUTH_MS)}
    with Stage(home / "data", settings, is_measured=True) as stage:
        flights(stage)
        _plain(stage)
        _scram(stage)
        _bearer(stage)
        _certificates(stage, keys)
        _sessions(stage, keys)
    return stage


def _plain(stage: Stage) -> None:
    stage.chapter("plain")
    line = stage.line("alice", "SASL_PLAINTEXT")
    for version in range(3):
        line.ask("sasl_handshake", 1, {"mechanism": "PLAIN"})
        line.ask("sasl_authenticate", version, {"auth_bytes": plain("alice")}, "well")
        line.ask("metadata", 9, TOPIC, "with no rights")
        line.close()
    wrong = (
        plain("alice", "wrong"),
        plain("nobody"),
        b"",
        b"alice",
        b"other\0alice\0" + PASSWORD.encode(),
        b"\0\xff\0" + PASSWORD.encode(),
    )
    for given in wrong:
        line.ask("sasl_handshake", 1, {"mechanism": "PLAIN"})
        line.ask("sasl_authenticate", 2, {"auth_bytes": given}, "not well")
        line.ask("metadata", 9, TOPIC, "after that")
        line.close()
    line.ask("sasl_handshake", 0, {"mechanism": "PLAIN"}, "with bare messages to follow")
    line.bare(plain("alice"), "PLAIN without a header")
    line.ask("metadata", 9, TOPIC)
    line.close()


def _scram(stage: Stage) -> None:
    stage.chapter("scram")
    users: Tree = {"deletions": [], "upsertions": [upsertion("alice"), upsertion("bob", SHA_512)]}
    stage.main.ask("alter_user_scram_credentials", 0, users)
    line = stage.line("scram", "SASL_PLAINTEXT")
    small, large = "SCRAM-SHA-256", "SCRAM-SHA-512"
    scram(line, small, Scram("alice", "password"))
    line.ask("metadata", 9, TOPIC)
    line.close()
    scram(line, large, Scram("bob", "password", "sha512"), version=1)
    line.close()
    scram(line, small, Scram("alice", "wrong"))
    line.close()
    for _ in range(2):
        scram(line, small, Scram("nobody", "password"))
        line.close()
    scram(line, large, Scram("alice", "password", "sha512"))
    line.close()
    gone: Tree = {"deletions": [{"name": "alice", "mechanism": SHA_256}], "upsertions": []}
    stage.main.ask("alter_user_scram_credentials", 0, gone)
    scram(line, small, Scram("alice", "password"))
    line.close()


def _bearer(stage: Stage) -> None:
    stage.chapter("bearer")
    line = stage.line("bearer", "SASL_PLAINTEXT")
    now_s = stage.clock.now_ms() // 1000
    tokens = {
        "well": token(),
        "for another service": token(aud="other"),
        "by another issuer": token(iss="other"),
        "over": token(exp=now_s - 100),
        "not yet": token(nbf=now_s + 1000),
        "without a name": token(sub=""),
        "with a key that is not known": token(kid="other"),
        "with a broken signature": token()[:-8] + "AAAAAAAA",
        "no token": "x.y",
    }
    for words, made in tokens.items():
        line.ask("sasl_handshake", 1, {"mechanism": "OAUTHBEARER"}, words)
        answer = line.ask("sasl_authenticate", 2, {"auth_bytes": bearer(made)}, words)
        if answer and answer["error_code"] == 0 and words != "well":
            line.ask("sasl_authenticate", 2, {"auth_bytes": b"\x01"}, "the end of a refusal")
        line.close()
    line.ask("sasl_handshake", 1, {"mechanism": "OAUTHBEARER"})
    own = b"n,a=bob," + bearer(token())[3:]
    line.ask("sasl_authenticate", 2, {"auth_bytes": own}, "for somebody else")
    line.close()


def _certificates(stage: Stage, keys: Path) -> None:
    stage.chapter("tls")
    alice = stage.line("certified", "SSL", context(keys, shows="alice"))
    alice.ask("api_versions", 3, {"client_software_name": "c", "client_software_version": "1"})
    alice.ask("metadata", 9, TOPIC, "by a certificate, with no rights")
    alice.close()
    stage.note("a client without a certificate")
    nobody = stage.line("uncertified", "SSL", context(keys))
    try:
        nobody.ask("metadata", 9, TOPIC)
    except ssl.SSLError as error:
        stage.note(f"refused: {error.reason}")
    nobody.close()
    stage.note("without TLS where TLS is spoken")
    bare = stage.line("bare", "SSL")
    bare.ask("metadata", 9, TOPIC)
    stage.note("TLS where none is spoken")
    other = stage.line("other", "PLAINTEXT", context(keys))
    try:
        other.ask("metadata", 9, TOPIC)
    except (ssl.SSLError, ConnectionError):
        stage.note("refused")
    other.close()


def _sessions(stage: Stage, keys: Path) -> None:
    stage.chapter("sessions")
    line = stage.line("both", "SASL_SSL", context(keys, shows="alice"))
    line.ask("sasl_handshake", 1, {"mechanism": "PLAIN"})
    line.ask("sasl_authenticate", 2, {"auth_bytes": plain("reader")}, "within TLS")
    line.ask("metadata", 9, TOPIC)
    line.ask("sasl_handshake", 1, {"mechanism": "PLAIN"}, "again")
    line.ask("sasl_authenticate", 2, {"auth_bytes": plain("reader")}, "again")
    stage.advance(REAUTH_MS - 1)
    line.ask("metadata", 9, TOPIC, "a moment before the end")
    stage.advance(1)
    line.ask("metadata", 9, TOPIC, "after the end")
    line.close()
    line.ask("sasl_handshake", 1, {"mechanism": "PLAIN"})
    line.ask("sasl_authenticate", 2, {"auth_bytes": plain("reader")})
    line.ask("sasl_handshake", 1, {"mechanism": "PLAIN"}, "as somebody else")
    line.ask("sasl_authenticate", 2, {"auth_bytes": plain("alice")}, "as somebody else")
    line.close()
