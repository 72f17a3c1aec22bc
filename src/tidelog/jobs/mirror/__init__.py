"""Mirror: topics copied to another place, with a map of their offsets."""
