"""Requests and responses, a module a family; the table of APIs, dispatch, charges."""
