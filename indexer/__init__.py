"""Follows the program on any cluster: signatures, then transactions, then decoded events in a database of its own.

Everything in that database can be rebuilt from the chain.
"""

from indexer.follower import Indexer
from indexer.rpc import RpcError
from indexer.store import EventStore, StoredEvent

__all__ = ["EventStore", "Indexer", "RpcError", "StoredEvent"]
