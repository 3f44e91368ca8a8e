"""The list of an organisation's events."""
