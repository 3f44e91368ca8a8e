"""Organisations."""
