"""The command line `agent-vault`; one module per command group."""
