"""The demo, `./run demo`: loads a year of flights, queries both clocks, replays a day by Spark.

It uses the library as a user's program would; no module outside the demo imports it.
"""
