"""Checks an exported file against the chain, without the service: its database, its indexer, its answers.

All it takes from the service's code are the forms of files, identifiers and amounts.
"""
