"""The demo, `./run demo`: a year of flights in a log, both clocks, a storm day replayed by Spark.

A program on top of the library, as a user would write it; nothing else imports it.
"""
