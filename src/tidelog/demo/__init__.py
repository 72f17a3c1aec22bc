"""The main job, `./run demo`: real flights go into a log, Spark replays a storm day by time.

A program on top of the library, as a user would write it; nothing else imports it.
"""
