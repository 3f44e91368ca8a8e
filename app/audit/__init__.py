"""The audit log: shown to admins, kept for its retention time, its chain heads published daily."""
