"""The check of an exported file against the chain alone.

The check uses neither the service nor the service's database. It shares code with the service: the layout of files,
identifiers, amounts and times, the calls to a node, and the decoding of events.
"""
