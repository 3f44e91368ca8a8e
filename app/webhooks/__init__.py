"""Webhooks: what an organisation registers, how events are signed, and the part that sends them."""
