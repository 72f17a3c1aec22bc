"""Requests and responses, a module for each family of APIs; the table of APIs, dispatch, charges."""
