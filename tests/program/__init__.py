"""The built program in the Solana VM: what each instruction does, what it refuses, and attempts to get round it."""
