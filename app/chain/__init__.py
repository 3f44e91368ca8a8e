"""The client of a Solana node: JSON-RPC, addresses and instruction builders."""
