"""Mirror: copies topics to another place, and records a map of their offsets."""
