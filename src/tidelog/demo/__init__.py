"""The demo, `./run demo`: a year of flights in a log, both clocks, a storm day replayed by Spark.

It uses the library as a user's program would; no other module imports it.
"""
