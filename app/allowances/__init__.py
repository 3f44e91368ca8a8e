"""Allowances: money set aside for a delegate that pays by plain token transfers."""
