"""The demo, `./run demo`: loads a year of flights, queries both clocks, replays a day on Spark.

The demo uses the library as a user's program would. No module outside this package imports it.
"""
