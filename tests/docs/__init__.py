"""Tests of the documents: the quick start, the links, the search, the guides' commands, the display in a browser."""
