"""Paid requests: payments to resources that answer HTTP 402, by x402 versions 1 and 2 and by MPP.

The resource names a price. The vault's session or the operator signs a payment, and the service hands it out without
sending it. A facilitator sends the payment to the chain, where the program judges it like any other payment. If the
facilitator settles plain transfers only, as all MPP servers do, the program judges the grant of an allowance instead,
which funds the transfer.
"""
