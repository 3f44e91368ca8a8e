"""Tests of the example clients, which use the program through its IDL alone."""
