"""The check of an exported file against the chain alone.

It uses neither the service nor its database. It shares code with the service: the layout of files, identifiers, amounts
and times, the calls to a node, and the decoding of events.
"""
