"""The documentation pages: they are self-contained and load nothing from elsewhere."""
