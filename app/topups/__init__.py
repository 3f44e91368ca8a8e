"""Auto-topup rules: fill a wallet from the reserve when its balance is low."""
