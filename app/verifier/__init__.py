"""The check of an exported file against the chain alone.

It shares only the layout of files, identifiers and amounts with the service.
"""
