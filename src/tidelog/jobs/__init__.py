"""Jobs: functions that take a session and DataFrames, and return DataFrames.

Each module has the name of its job. A job returns its summary as a DataFrame, so that the next step
can be Spark again. Jobs that read and write call `transform`, a function of the caller, on the rows
in between.
"""
