"""Tests of the documents: the quick start, the links, the search, the explorer, what a browser shows."""
