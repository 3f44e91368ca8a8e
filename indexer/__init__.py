"""Follows the program on any cluster and stores its decoded events in tables of its own.

The tables are in a SQLite file, or in the service's PostgreSQL database. They can be rebuilt from the chain, as far as
a node serves its history.
"""

from indexer.follower import Indexer
from indexer.store import Events, EventStore, LastRow, StoredEvent

__all__ = ["EventStore", "Events", "Indexer", "LastRow", "StoredEvent"]
