"""Submission."""
