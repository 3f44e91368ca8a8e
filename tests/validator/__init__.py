"""The project on solana-test-validator, Agave's own: what runs elsewhere on the embedded chain runs there, too."""
