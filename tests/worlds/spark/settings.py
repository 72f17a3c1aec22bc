"""Settings of the tests' Spark sessions, and of sessions in programs that tests start."""

from tests.worlds.class_archives import SPARK, archived

# The JVM's second compiler is switched off, because sessions run a few small queries, which end
# before this compiler's code is ready. For a stream of twelve batches, the compiler would take a
# quarter of the CPU time.
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
    # Long enough for a task of an aborted write to read its rows to the end and clean up, even on a
    # busy machine.
    "spark.python.task.killTimeout": "60s",
}
