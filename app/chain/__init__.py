"""What the service and the indexer need to talk to a Solana node: addresses, instructions, the JSON-RPC client."""
