"""The audit log: shows entries to admins, deletes entries after their retention time, and publishes daily hashes."""
