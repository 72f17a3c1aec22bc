"""Bootstrap: writes a table of Spark as the first records of a topic."""
