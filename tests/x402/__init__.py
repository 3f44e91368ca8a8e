"""Payments to resources that answer 402, against the public packages and against hostile servers."""
