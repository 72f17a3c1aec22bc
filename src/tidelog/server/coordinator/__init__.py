"""Internal topics with a broker's own state, written and loaded alike for all coordinators."""
