"""Transactions that an organisation's authority signs elsewhere: listed, submitted, withdrawn."""
