"""Everything between the service and a Solana node: addresses, instructions, and the JSON-RPC client."""
