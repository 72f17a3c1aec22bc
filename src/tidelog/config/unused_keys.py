"""Settings of Kafka that have no effect in tidelog, but are accepted with a note.

Clients see these settings. tidelog's broker is a single process, so it has no controller quorum and
no remote replicas, and it uses threads differently from Kafka. The broker also supports neither
streams groups nor Kerberos. Names, types and defaults are Kafka 4.3's, so a value of a wrong type
is refused, as in Kafka. Most ranges are not checked. Administration tools change the settings in
`CHANGEABLE` at run time, so the broker accepts these changes.

Source: Kafka 4.3's response to DescribeConfigs.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.config.values import (
    FLAG,
    PASSWORD,
    RATIO,
    TEXT,
    TEXTS,
    ConfigKey,
    ConfigValue,
    ValueKind,
    whole_number,
)

# Setting that names the listeners of Kafka's controllers. No client connects to these listeners, so
# tidelog's broker does not open them.
CONTROLLER_LISTENERS: Final = "controller.listener.names"

DOC: Final = "Accepted for compatibility with Kafka; has no effect."

_INTS: Final[Mapping[str, str | None]] = {
    "add.partitions.to.txn.retry.backoff.max.ms": "100",
    "add.partitions.to.txn.retry.backoff.ms": "20",
    "alter.log.dirs.replication.quota.window.num": "11",
    "alter.log.dirs.replication.quota.window.size.seconds": "1",
    "background.threads": "10",
    "broker.heartbeat.interval.ms": "2000",
    "broker.id": "-1",
    "broker.session.timeout.ms": "9000",
    "controller.quorum.append.linger.ms": "25",
    "controller.quorum.election.backoff.max.ms": "1000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.max.bytes": "1048576",
    "controller.quorum.fetch.snapshot.max.bytes": "1048576",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.request.timeout.ms": "2000",
    "controller.quorum.retry.backoff.ms": "20",
    "controller.quota.window.num": "11",
    "controller.quota.window.size.seconds": "1",
    "controller.socket.timeout.ms": "30000",
    "delete.records.purgatory.purge.interval.requests": "1",
    "fetch.purgatory.purge.interval.requests": "1000",
    "group.coordinator.append.linger.ms": "-1",
    "group.coordinator.background.threads": "2",
    "group.coordinator.cached.buffer.max.bytes": "1048588",
    "group.coordinator.threads": "4",
    "group.streams.assignment.interval.ms": "1000",
    "group.streams.heartbeat.interval.ms": "5000",
    "group.streams.initial.rebalance.delay.ms": "3000",
    "group.streams.max.assignment.interval.ms": "15000",
    "group.streams.max.heartbeat.interval.ms": "15000",
    "group.streams.max.session.timeout.ms": "60000",
    "group.streams.max.size": "2147483647",
    "group.streams.max.standby.replicas": "2",
    "group.streams.min.assignment.interval.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "5000",
    "group.streams.min.session.timeout.ms": "45000",
    "group.streams.num.standby.replicas": "0",
    "group.streams.session.timeout.ms": "45000",
    "initial.broker.registration.timeout.ms": "60000",
    "kafka.metrics.polling.interval.secs": "10",
    "log.cleaner.io.buffer.size": "524288",
    "log.flush.start.offset.checkpoint.interval.ms": "60000",
    "metadata.log.segment.bytes": "1073741824",
    "metadata.max.idle.interval.ms": "500",
    "metrics.num.samples": "2",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "num.recovery.threads.per.data.dir": "2",
    "num.replica.alter.log.dirs.threads": None,
    "num.replica.fetchers": "1",
    "offsets.commit.timeout.ms": "5000",
    "offsets.load.buffer.size": "5242880",
    "producer.purgatory.purge.interval.requests": "1000",
    "queued.max.requests": "500",
    "quota.window.num": "11",
    "quota.window.size.seconds": "1",
    "remote.fetch.max.wait.ms": "500",
    "remote.log.manager.copier.thread.pool.size": "10",
    "remote.log.manager.copy.quota.window.num": "11",
    "remote.log.manager.copy.quota.window.size.seconds": "1",
    "remote.log.manager.expiration.thread.pool.size": "10",
    "remote.log.manager.fetch.quota.window.num": "11",
    "remote.log.manager.fetch.quota.window.size.seconds": "1",
    "remote.log.manager.follower.thread.pool.size": "2",
    "remote.log.manager.thread.pool.size": "2",
    "remote.log.metadata.custom.metadata.max.bytes": "128",
    "remote.log.reader.max.pending.tasks": "100",
    "remote.log.reader.threads": "10",
    "replica.fetch.backoff.ms": "1000",
    "replica.fetch.max.bytes": "1048576",
    "replica.fetch.min.bytes": "1",
    "replica.fetch.response.max.bytes": "10485760",
    "replica.fetch.wait.max.ms": "500",
    "replica.socket.receive.buffer.bytes": "65536",
    "replica.socket.timeout.ms": "30000",
    "replication.quota.window.num": "11",
    "replication.quota.window.size.seconds": "1",
    "request.timeout.ms": "30000",
    "sasl.login.connect.timeout.ms": None,
    "sasl.login.read.timeout.ms": None,
    "sasl.oauthbearer.assertion.claim.exp.seconds": "300",
    "sasl.oauthbearer.assertion.claim.nbf.seconds": "60",
    "share.coordinator.append.linger.ms": "-1",
    "share.coordinator.cached.buffer.max.bytes": "1048588",
    "share.coordinator.load.buffer.size": "5242880",
    "share.coordinator.state.topic.compression.codec": "0",
    "share.coordinator.threads": "1",
    "share.coordinator.write.timeout.ms": "5000",
    "share.fetch.purgatory.purge.interval.requests": "1000",
    "socket.listen.backlog.size": "50",
    "socket.receive.buffer.bytes": "102400",
    "telemetry.max.bytes": "1048576",
    "transaction.state.log.load.buffer.size": "5242880",
    "transaction.state.log.min.isr": "2",
}

_SHORTS: Final[Mapping[str, str]] = {
    "sasl.login.refresh.buffer.seconds": "300",
    "sasl.login.refresh.min.period.seconds": "60",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}

_LONGS: Final[Mapping[str, str]] = {
    "delegation.token.expiry.check.interval.ms": "3600000",
    "delegation.token.expiry.time.ms": "86400000",
    "delegation.token.max.lifetime.ms": "604800000",
    "leader.imbalance.check.interval.seconds": "300",
    "log.dir.failure.timeout.ms": "30000",
    "metadata.log.max.record.bytes.between.snapshots": "20971520",
    "metadata.log.max.snapshot.interval.ms": "3600000",
    "metadata.log.segment.ms": "604800000",
    "metadata.max.retention.bytes": "104857600",
    "metadata.max.retention.ms": "604800000",
    "metrics.sample.window.ms": "30000",
    "remote.list.offsets.request.timeout.ms": "30000",
    "remote.log.index.file.cache.total.size.bytes": "1073741824",
    "remote.log.manager.copy.max.bytes.per.second": "9223372036854775807",
    "remote.log.manager.fetch.max.bytes.per.second": "9223372036854775807",
    "remote.log.manager.task.interval.ms": "30000",
    "replica.high.watermark.checkpoint.interval.ms": "5000",
    "replica.lag.time.max.ms": "30000",
    "sasl.kerberos.min.time.before.relogin": "60000",
    "sasl.login.retry.backoff.max.ms": "10000",
    "sasl.login.retry.backoff.ms": "100",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "10000",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "100",
    "socket.connection.setup.timeout.max.ms": "30000",
    "socket.connection.setup.timeout.ms": "10000",
}

_RATIOS: Final[Mapping[str, str]] = {
    "sasl.kerberos.ticket.renew.jitter": "0.05",
    "sasl.kerberos.ticket.renew.window.factor": "0.8",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.login.refresh.window.jitter": "0.05",
}

_FLAGS: Final[Mapping[str, str]] = {
    "auto.leader.rebalance.enable": "true",
    "controlled.shutdown.enable": "true",
    "controller.quorum.auto.join.enable": "false",
    "follower.fetch.last.tiered.offset.enable": "false",
    "remote.log.storage.system.enable": "false",
    "sasl.oauthbearer.assertion.claim.jti.include": "false",
    "ssl.allow.dn.changes": "false",
    "ssl.allow.san.changes": "false",
    "transaction.partition.verification.enable": "true",
    "unstable.api.versions.enable": "false",
}

# Maps a name to its default; None if Kafka has no default. The default of
# group.coordinator.rebalance.protocols names the protocols that the broker supports.
_LISTS: Final[Mapping[str, str | None]] = {
    CONTROLLER_LISTENERS: None,
    "controller.quorum.bootstrap.servers": "",
    "controller.quorum.voters": "",
    "early.start.listeners": None,
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.share.assignors": "simple",
    "kafka.metrics.reporters": "",
    "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
    "process.roles": None,
    "sasl.kerberos.principal.to.local.rules": "DEFAULT",
}

_TEXTS: Final[Mapping[str, str | None]] = {
    "inter.broker.listener.name": None,
    "metadata.log.dir": None,
    "metrics.recording.level": "INFO",
    "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
    "remote.log.metadata.manager.listener.name": None,
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "replica.selector.class": None,
    "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
    "sasl.kerberos.service.name": None,
    "sasl.mechanism.controller.protocol": "GSSAPI",
    "sasl.mechanism.inter.broker.protocol": "GSSAPI",
    "sasl.oauthbearer.assertion.algorithm": "RS256",
    "sasl.oauthbearer.assertion.claim.aud": None,
    "sasl.oauthbearer.assertion.claim.iss": None,
    "sasl.oauthbearer.assertion.claim.sub": None,
    "sasl.oauthbearer.assertion.file": None,
    "sasl.oauthbearer.assertion.private.key.file": None,
    "sasl.oauthbearer.assertion.template.file": None,
    "sasl.oauthbearer.client.credentials.client.id": None,
    "sasl.oauthbearer.scope": None,
    "sasl.oauthbearer.scope.claim.name": "scope",
    "sasl.oauthbearer.token.endpoint.url": None,
    "security.inter.broker.protocol": "PLAINTEXT",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.keymanager.algorithm": "SunX509",
    "ssl.protocol": "TLSv1.3",
    "ssl.provider": None,
    "ssl.secure.random.implementation": None,
    "ssl.trustmanager.algorithm": "PKIX",
}

_PASSWORDS: Final[Mapping[str, str | None]] = {
    "ssl.keystore.password": None,
    "ssl.truststore.password": None,
}

# Settings of Kafka that are refused. The broker does not support them, and ignoring them would do
# harm, because users rely on their effect.
NOT_SERVED: Final = frozenset(
    {
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "config.providers",
        "cordoned.log.dirs",
        "create.topic.policy.class.name",
        "delegation.token.secret.key",
        "max.connection.creation.rate",
        "max.request.partition.size.limit",
        "principal.builder.class",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "sasl.client.callback.handler.class",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.server.callback.handler.class",
        "sasl.server.max.receive.size",
        "security.providers",
        "ssl.cipher.suites",
        "ssl.engine.factory.class",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.truststore.certificates",
        "transaction.two.phase.commit.enable",
    }
)

CONTROL_PLANE: Final = "control.plane.listener.name"

# Settings of Kafka before version 4. They are accepted with a note, but clients don't see them.
FORMER: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        CONTROL_PLANE,
        "inter.broker.protocol.version",
        "offsets.commit.required.acks",
        "reserved.broker.max.id",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
        "zookeeper.metadata.migration.enable",
        "zookeeper.session.timeout.ms",
        "zookeeper.set.acl",
    }
)


def _keys(
    kind: ValueKind[ConfigValue], defaults: "Mapping[str, str] | Mapping[str, str | None]"
) -> list[ConfigKey]:
    return [
        ConfigKey(name=name, kind=kind, default=default, doc=DOC, has_effect=False)
        for name, default in defaults.items()
    ]


WITHOUT_EFFECT: Final[Mapping[str, ConfigKey]] = {
    key.name: key
    for keys in (
        _keys(whole_number("int"), _INTS),
        _keys(whole_number("short"), _SHORTS),
        _keys(FLAG, _FLAGS),
        _keys(TEXTS, _LISTS),
        _keys(TEXT, _TEXTS),
        _keys(whole_number("long"), _LONGS),
        _keys(RATIO, _RATIOS),
        _keys(PASSWORD, _PASSWORDS),
    )
    for key in keys
}

# Settings that can be changed at run time for one broker, but not for all brokers together.
ONE_BROKERS: Final = frozenset(
    {
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
    }
)

CHANGEABLE: Final = ONE_BROKERS | {
    "background.threads",
    "log.cleaner.io.buffer.size",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
}
