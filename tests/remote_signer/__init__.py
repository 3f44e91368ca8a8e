"""The check of a transaction by who signs it elsewhere."""
