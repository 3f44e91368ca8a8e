"""Attacks on the program, derived from its IDL: every account of every instruction, one attack at a time.

`stage` sets up two organisations in all the states that instructions need. `calls`, `escrow_calls` and
`allowance_calls` register valid calls of every instruction in the list of `ways`. `attacks` turns a call into its
attacks. `refusals.txt` is the table of the error that each attack gets.
"""

from tests.program.adversaries import allowance_calls, calls, escrow_calls

__all__ = ["allowance_calls", "calls", "escrow_calls"]
