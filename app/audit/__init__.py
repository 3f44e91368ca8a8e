"""The audit log: shown to admins, kept for its time, and its heads sent out every day."""
