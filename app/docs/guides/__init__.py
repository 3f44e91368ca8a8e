"""Guides, as Markdown: what the service does and how it is run."""
