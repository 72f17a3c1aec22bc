"""The demo, `./run demo`: loads a year of flights, queries both clocks, replays a day by Spark.

It uses the library as a user's program would; no other module of the package imports it.
"""
