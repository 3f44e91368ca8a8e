"""Guides in Markdown: what the service does and how to run it."""
