"""The comparison of on-chain balances with the read models."""
