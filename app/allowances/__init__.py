"""Allowances: money set aside for a delegate, who pays by plain token transfers."""
