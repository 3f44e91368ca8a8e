"""Tests of the embedded chain."""
