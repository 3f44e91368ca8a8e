"""Benchmarks: run by hand, printed as tables, never part of the tests."""
