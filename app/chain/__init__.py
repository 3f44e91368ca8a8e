"""The client of Solana nodes: JSON-RPC, the addresses of accounts, and builders of instructions."""
