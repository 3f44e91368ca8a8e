"""Auto-topup rules, which refill a wallet from the reserve when its balance is low."""
