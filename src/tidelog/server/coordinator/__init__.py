"""Topics that hold a broker's own state, written and loaded the same way for all coordinators."""
