"""Regular expressions of clients: RE2's language, matched in time that grows with the text alone.

`characters` are sets of code points, `syntax` makes a `tree` of a text, `matching` follows it;
`topic_names` adds the classes of Unicode that names of topics need. Nothing here imports the rest
of the server. Python's own engine can take for ever on a short text, so none of it runs on that.
"""
