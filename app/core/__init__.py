"""Money, times, identifiers, errors, settings and background work. This package imports no other package of `app`."""
