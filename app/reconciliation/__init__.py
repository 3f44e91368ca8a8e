"""The comparison of the read models with on-chain state."""
