"""Recipients: resolves whom a client names, and registers categories and domains."""
