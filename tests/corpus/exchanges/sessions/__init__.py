"""Sessions that tell a story of their own, beside those of single APIs."""
