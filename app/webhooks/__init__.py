"""Webhooks: registration, and the signed delivery of events."""
