"""Checks an exported file against the chain alone, without the service's database, indexer or answers.

It shares only the layout of files, identifiers and amounts with the service.
"""
