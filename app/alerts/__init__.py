"""Alert rules on wallets, reported by events and e-mails."""
