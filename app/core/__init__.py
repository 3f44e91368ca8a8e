"""What knows nothing of the rest of the service: money, times, identifiers, errors, settings, background work."""
