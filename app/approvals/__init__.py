"""The operator's approvals of payments and escrows above a policy's threshold."""
