"""Paid requests: payments to resources that answer HTTP 402, by x402 versions 1 and 2.

The resource names a price, and a facilitator settles what the vault's session has signed: the service hands out a
transaction that it does not send. The program judges it as it settles, like any payment.
"""
