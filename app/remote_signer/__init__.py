"""Shows facts and claims about a transaction, and signs it, on another machine than the service's."""
