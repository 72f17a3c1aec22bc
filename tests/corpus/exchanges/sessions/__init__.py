"""Sessions with stories of their own, beside those of single APIs."""
