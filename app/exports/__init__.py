"""Exports of transactions as files, written in the background."""
