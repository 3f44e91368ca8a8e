"""Money, times, identifiers, errors, settings and background work. It imports no other folder."""
