"""Attempts to get round the program, made from its IDL: every account of every instruction, one attack at a time.

`stage` holds two organisations in all the states that instructions need. `calls` and `escrow_calls` have a valid call
of every instruction, and put it on the list in `ways`. `attacks` turns a call into its attacks. `refusals.txt` is the
table of what each is answered with.
"""

from tests.program.adversaries import calls, escrow_calls

__all__ = ["calls", "escrow_calls"]
