"""Alerts: conditions of wallets that are reported by events and e-mails."""
