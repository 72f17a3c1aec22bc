"""Settings of the sessions of tests, also in programs that tests start."""

from tests.worlds.class_archives import SPARK, archived

# Sessions here live for some small queries: what the JVM's second compiler makes of them would be
# done when they are through. A quarter of the CPU time of a stream of twelve batches.
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
    # A task of a write that is aborted cleans up when its rows end, however busy the machine.
    "spark.python.task.killTimeout": "60s",
}
