"""Transactions that the organisation's authority signs elsewhere: taken, listed, withdrawn."""
