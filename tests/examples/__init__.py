"""The examples for strangers, run as their README says."""
