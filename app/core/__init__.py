"""Money, times, identifiers, errors, settings and background work; imports no other folder."""
