"""The engine of transactions: simulated, stored, sent and recovered, under idempotency keys and locks."""
