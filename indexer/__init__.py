"""Follows the program on any cluster and stores its decoded events in a separate database.

This database can be rebuilt from the chain at any time.
"""

from indexer.follower import Indexer
from indexer.store import Events, EventStore, LastRow, StoredEvent

__all__ = ["EventStore", "Events", "Indexer", "LastRow", "StoredEvent"]
