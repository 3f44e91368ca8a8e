"""The payment service: its HTTP API, the chain access behind it and the embedded chain."""
