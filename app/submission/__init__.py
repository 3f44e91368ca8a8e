"""The engine that simulates, stores, sends and recovers transactions, under idempotency keys and locks."""
