"""Events: their catalogue, and the list of an organisation's."""
