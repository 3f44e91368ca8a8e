"""Read models and feed, computed from on-chain events by one handler per event."""
