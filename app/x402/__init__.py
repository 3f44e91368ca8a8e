"""Paid requests: payments to resources that answer HTTP 402, by x402 versions 1 and 2.

The resource names a price. The vault's session signs a transaction, and the service hands it out without sending it. A
facilitator sends it to settle the payment, and at that moment the program judges it like any payment.
"""
