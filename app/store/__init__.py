"""The service's tables, and functions that read and write them inside one transaction.

State (keys, attempts, labels, memos, idempotency) is not on the chain and is never rebuilt. The read models (wallets,
policies, transactions, recipients) follow from the chain; the projector can rebuild them.
"""
