"""The lag of groups, counted by Spark."""
