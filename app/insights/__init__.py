"""Insights: spending, payments and refusals of a period, by groups."""
