"""Exports of transactions as files, which are written in the background."""
