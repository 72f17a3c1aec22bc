"""Bootstrap: loads a table of Spark into a topic."""
