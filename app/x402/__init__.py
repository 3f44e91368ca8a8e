"""Payments to resources that answer HTTP 402, by the x402 protocol, versions 1 and 2, scheme `exact`.

The resource names a price, and a facilitator settles what the vault's session has signed: the service hands out a
transaction that it does not send. The program judges it as it settles, like any payment.
"""
