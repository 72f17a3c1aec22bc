"""Page `metrics` of the surface: name, type, help, labels and buckets of each metric.

Clients write, read, commit, authenticate, fail to authenticate and request a compaction, so that
each metric of the broker has a series.
"""

import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.corpus import still
from tests.corpus.book import Entry
from tests.corpus.shell import run

import tidelog

Settings: TypeAlias = dict[str, str | int | float | bool]

WAIT_S: Final = 60
SETTINGS: Final = {
    "tidelog.metrics.listen": "127.0.0.1:0",
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    # Background work is off, because the cleaner would run before or after a command at random.
    "log.initial.task.delay.ms": "864000000",
}
_SERIES: Final = re.compile(r"(\w+?)(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Labels whose values tidelog itself defines.
_CHOICES: Final = ("clock", "kind", "mechanism", "outcome", "le")


def pages(home: Path) -> Iterator[Entry]:
    """Yield an entry for each metric."""
    users = home / "users"
    users.write_text("ann=ann-secret\n")
    settings = {**SETTINGS, "tidelog.sasl.plain.users.file": f"{users}"}
    with tidelog.broker(str(home / "metrics"), settings=settings) as broker:
        _use(broker.bootstrap_servers, broker.data, broker.ports["SASL_PLAINTEXT"])
        address = f"http://{broker.metrics_address}/metrics"
        text = urllib.request.urlopen(address, timeout=WAIT_S).read().decode()
    for name, lines in _families(text).items():
        if name.startswith("tidelog_"):
            yield Entry(f"surface/metrics/{name}", "\n".join(lines))


def _use(bootstrap: str, data: str, sasl_port: int) -> None:
    client: Settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    admin = AdminClient(client)
    topics = [NewTopic("t", 1), NewTopic("c", 1, config={"cleanup.policy": "compact"})]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)
    producer = Producer({**client, "transactional.id": "writer"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for number in range(5):
        for topic in ("t", "c"):
            producer.produce(topic, b"value", b"key", timestamp=still.now_ms() - 1000 * number)
    producer.commit_transaction(WAIT_S)
    consumer = Consumer({**client, "group.id": "reader", "auto.offset.reset": "earliest"})
    # Consuming both topics ensures that both have the commit's marker before the compaction.
    consumer.assign([TopicPartition("t", 0, 0), TopicPartition("c", 0, 0)])
    assert len(consumer.consume(10, WAIT_S)) == 10
    consumer.commit(offsets=[TopicPartition("t", 0, 3)], asynchronous=False)
    compacted = run("compact", "c", "--roll", "--data", data)
    assert compacted.code == 0, compacted
    producer.begin_transaction()
    producer.produce("c", b"value", b"key", timestamp=still.now_ms())
    producer.commit_transaction(WAIT_S)
    # With a wrong password librdkafka retries until its timeout.
    for password, timeout_s in (("ann-secret", WAIT_S), ("wrong", 5)):
        _log_in(sasl_port, password, timeout_s)
    consumer.close()


def _log_in(port: int, password: str, timeout_s: int) -> None:
    login: Settings = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": password,
        "log_level": 0,
    }
    with suppress(KafkaException):
        AdminClient(login).list_topics(timeout=timeout_s)


def _families(text: str) -> dict[str, list[str]]:
    """Return help, type and labels by metric, with the values of tidelog's own labels."""
    found: dict[str, list[str]] = {}
    values = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, told = line.removeprefix("# HELP ").partition(" ")
            found[name] = [f"help {told}"]
        elif line.startswith("# TYPE "):
            found[name].append(f"type {line.split()[-1]}")
        elif series := _SERIES.fullmatch(line):
            for label, value in _LABEL.findall(series[2] or ""):
                values[name][label].add(value)
            values[name][""].add(series[1])
    for metric, lines in found.items():
        names = sorted(values[metric].pop("", set()))
        lines.append(f"series {', '.join(names) or 'none'}")
        for label, kept in sorted(values[metric].items()):
            shown = f" = {', '.join(sorted(kept))}" if label in _CHOICES else ""
            lines.append(f"label {label}{shown}")
    return dict(sorted(found.items()))
