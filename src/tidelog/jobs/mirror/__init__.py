"""Mirror: copies topics to another place, and writes a map of their offsets."""
