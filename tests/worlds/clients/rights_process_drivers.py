"""kcat and Kafka's Java clients as `rights_drivers.Driver`."""

import subprocess
from typing import Final, cast

from tests.worlds.clients.rights_drivers import TIMEOUT_MS, Asked, Told, key_of
from tests.worlds.clients.rights_table import OPEN, Step
from tests.worlds.clients.secured import TIMEOUT_S
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.needs import need_kcat

TOPIC_DENIED: Final = "Topic authorization failed"
GROUP_DENIED: Final = "Group authorization failed"
CLUSTER_DENIED: Final = "Cluster authorization failed"
ID_DENIED: Final = "Transactional Id authorization failed"


class Kcat:
    """Driver of kcat. One process lists all topics; every other process tests one name."""

    def __init__(self) -> None:
        need_kcat()

    def ask(self, bootstrap: str, user: str, asked: Asked) -> Told:
        """Run all steps, see `Driver`."""
        run = _Runner(bootstrap, user)
        listed = run("-L").stdout
        told: Told = {
            (Step.SEE, name): f'topic "{name}" with 1 partitions:\n' in listed
            for name in asked[Step.SEE]
        }
        for name in asked[Step.WRITE]:
            done = run("-P", "-t", name, "-p", "0", data="w\n")
            told[Step.WRITE, name] = _is_well(done, TOPIC_DENIED)
        for name in asked[Step.READ]:
            done = run("-C", "-t", name, "-p", "0", "-o", "beginning", "-c", "1")
            told[Step.READ, name] = _is_well(done, TOPIC_DENIED)
        for name in asked[Step.COMMIT]:
            done = run("-G", name, "-o", "beginning", "-c", "1", OPEN)
            told[Step.COMMIT, name] = _is_well(done, GROUP_DENIED)
            # If the user must not look up the coordinator, kcat's stderr contains the name of this
            # request.
            told[Step.COMMITTED, name] = "FindCoordinator" not in done.stderr
        for name in asked[Step.BEGIN]:
            done = run("-P", "-t", OPEN, "-X", f"transactional.id={name}")
            told[Step.BEGIN, name] = _is_well(done, ID_DENIED)
        for name in asked[Step.NUMBER]:
            done = run("-P", "-t", OPEN, "-p", "0", "-X", "enable.idempotence=true", data="n\n")
            # After this denial kcat either exits with success or prints more errors.
            told[Step.NUMBER, name] = CLUSTER_DENIED not in done.stderr and (
                TOPIC_DENIED in done.stderr or _is_well(done, CLUSTER_DENIED)
            )
        return told


class _Runner:
    """Runs kcat with the settings of one user."""

    def __init__(self, bootstrap: str, user: str) -> None:
        given = key_of(user).librdkafka(bootstrap) | {"log_level": 6}
        del given["bootstrap.servers"]
        more = [part for name, value in given.items() for part in ("-X", f"{name}={value}")]
        self._command = ["kcat", "-b", bootstrap, "-m", str(TIMEOUT_S), *more]

    def __call__(
        self, mode: str, *arguments: str, data: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        command = [*self._command, mode, *arguments]
        return subprocess.run(
            command, input=data, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False
        )


def _is_well(done: "subprocess.CompletedProcess[str]", denial: str) -> bool:
    if done.returncode == 0:
        return True
    assert denial in done.stderr, done.stderr
    return False


def java_config(bootstrap: str, user: str) -> dict[str, str]:
    """Return the settings with which a user connects by Kafka's own clients."""
    key = key_of(user)
    assert key.mechanism is not None
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": key.protocol,
        "sasl.mechanism": key.mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{key.password}";',
        "default.api.timeout.ms": str(TIMEOUT_MS),
        "request.timeout.ms": str(TIMEOUT_MS - 1),
    }


class Java:
    """Driver of Kafka's own clients, in the oracle's JVM."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def ask(self, bootstrap: str, user: str, asked: Asked) -> Told:
        """Run all steps, see `Driver`."""
        steps = {step.value: list(names) for step, names in asked.items()}
        config = java_config(bootstrap, user)
        said = self._oracle.ask("rights", config=config, steps=steps, open=OPEN)
        found = cast("dict[str, dict[str, bool]]", said)
        return {
            (step, name): found[step.value][name] for step, names in asked.items() for name in names
        }
