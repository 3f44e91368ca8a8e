"""The event catalogue, and the list of an organisation's events."""
