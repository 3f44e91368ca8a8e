"""Allowances: money set aside for a delegate, where a recipient takes only a plain transfer."""
