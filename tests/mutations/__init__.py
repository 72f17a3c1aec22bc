"""Small changes of the source that a test has to notice: `./run mutations`."""
