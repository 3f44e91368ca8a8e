"""Attempts to get round the program, made from its IDL: every account of every instruction, one attack at a time.

`stage` holds two organisations in all the states that instructions need. `calls` has a valid call of every
instruction. `attacks` turns a call into its attacks. `refusals.txt` is the table of what each is answered with.
"""
