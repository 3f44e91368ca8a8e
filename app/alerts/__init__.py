"""Alerts: what is worth telling somebody about a wallet, when it is told, and the e-mails that tell it."""
