"""Tests of the example clients, which use the program only through its IDL, and of a generated HTTP client."""
