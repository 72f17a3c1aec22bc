"""The jobs: functions that take a session and DataFrames, and hand out DataFrames.

Each module has the name of its job. A job's answer is its summary as a DataFrame, so that the next
step can be Spark again; where a job reads and writes, `transform` stands between the two.
"""
