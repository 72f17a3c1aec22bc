"""Settings of Kafka's that have no use here: they are taken with a note, kept as text, and shown.

One process without a controller has no quorum, no replicas elsewhere and threads of its own; and
there are neither groups of the streams protocol nor log-ins by Kerberos. Names, types and defaults
are Kafka 4.3's, so that a `server.properties` can stay as it is and is read with the same care.
Those that Kafka lets change while it runs can be changed here, too: tools set them.

Source: Kafka 4.3's answer to DescribeConfigs.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.config.keys import ConfigKey
from tidelog.config.values import FLAG, RATIO, TEXT, TEXTS, ValueKind, whole_number

DOC: Final = "Taken for Kafka's sake; it has no effect here."

_INTS: Final[Mapping[str, str]] = {
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
    "group.coordinator.append.linger.ms": "-1",
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
    "log.cleaner.io.buffer.size": "524288",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "num.recovery.threads.per.data.dir": "2",
    "num.replica.fetchers": "1",
    "offsets.commit.timeout.ms": "5000",
    "offsets.load.buffer.size": "5242880",
    "queued.max.requests": "500",
    "share.coordinator.append.linger.ms": "-1",
    "share.coordinator.cached.buffer.max.bytes": "1048588",
    "share.coordinator.load.buffer.size": "5242880",
    "share.coordinator.state.topic.compression.codec": "0",
    "share.coordinator.threads": "1",
    "share.coordinator.write.timeout.ms": "5000",
    "socket.listen.backlog.size": "50",
    "socket.receive.buffer.bytes": "102400",
    "transaction.state.log.load.buffer.size": "5242880",
    "transaction.state.log.min.isr": "2",
}
_SHORTS: Final[Mapping[str, str]] = {
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}
_LONGS: Final[Mapping[str, str]] = {"sasl.kerberos.min.time.before.relogin": "60000"}
_RATIOS: Final[Mapping[str, str]] = {
    "sasl.kerberos.ticket.renew.jitter": "0.05",
    "sasl.kerberos.ticket.renew.window.factor": "0.8",
}
_FLAGS: Final[Mapping[str, str]] = {
    "controller.quorum.auto.join.enable": "false",
    "unstable.api.versions.enable": "false",
}
# Where Kafka has no default there is none. Of the protocols of groups these are served.
_LISTS: Final[Mapping[str, str | None]] = {
    "controller.listener.names": None,
    "controller.quorum.bootstrap.servers": "",
    "controller.quorum.voters": "",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.share.assignors": "simple",
    "process.roles": None,
}
_TEXTS: Final[Mapping[str, str | None]] = {
    "inter.broker.listener.name": None,
    "replica.selector.class": None,
}


def _keys(
    kind: ValueKind, defaults: "Mapping[str, str] | Mapping[str, str | None]"
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
    )
    for key in keys
}

# Of these a broker takes other values for itself alone, none for all brokers.
ONE_BROKERS: Final = frozenset((*_LONGS, *_RATIOS))
CHANGEABLE: Final = ONE_BROKERS | {
    "background.threads",
    "log.cleaner.io.buffer.size",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
}
