"""The list of transactions: every movement of money, and every refused payment."""
