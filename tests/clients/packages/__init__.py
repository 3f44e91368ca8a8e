"""Programs that use the built clients."""
