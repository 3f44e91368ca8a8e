"""Shows the facts and claims about a transaction and signs it, on a machine other than the service's."""
