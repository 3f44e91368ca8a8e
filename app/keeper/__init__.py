"""Keeper."""
