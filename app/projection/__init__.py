"""What each on-chain event changes in the read models and the feed: one function per event."""
