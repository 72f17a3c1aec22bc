"""Settings of the tests' Spark sessions, also in programs that tests start."""

from tests.worlds.class_archives import SPARK, archived

# Sessions run only a few small queries, which end before the code of the JVM's second compiler
# would be ready. It would take a quarter of the CPU time of a stream of twelve batches.
PLAIN_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JVM = " ".join((PLAIN_JVM, *archived(SPARK)))
SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # A task of an aborted write cleans up when its rows end, even on a busy machine.
    "spark.python.task.killTimeout": "60s",
}
