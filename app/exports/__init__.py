"""Exports: a wallet's or the organisation's transactions as a file, written in the background."""
