"""The PostgreSQL engine: a writer with batched commits, pooled readers, and libpq statements without cursors."""
