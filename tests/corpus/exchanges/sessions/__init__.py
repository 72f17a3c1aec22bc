"""Sessions that combine requests of several APIs."""
