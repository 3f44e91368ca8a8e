"""Runs on Agave's solana-test-validator what elsewhere runs on the embedded chain."""
