"""The readable documentation: one page for the interface, one for each error code; nothing is loaded from elsewhere."""
