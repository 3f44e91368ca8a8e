"""Protocols of paid requests: each reads offers out of a 402 response and writes the credentials that pay."""
