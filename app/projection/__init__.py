"""What each event of the chain means for the read models and the feed: one function an event."""
