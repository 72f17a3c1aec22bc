"""The demo, `./run demo`: loads a year of flights, queries both clocks, replays a day on Spark.

The demo uses the library as a user's program would. The notebooks, a benchmark and a tool use its
table of flights.
"""
