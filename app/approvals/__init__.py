"""Approvals: the operator's consent to expenses above a policy's threshold."""
