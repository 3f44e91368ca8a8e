"""Recipients: payee resolution, and the registry of categories and domains."""
