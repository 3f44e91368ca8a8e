"""Random sequences of payments and escrows between two vaults and an outsider, run in the VM and foretold by a model.

`steps` says what a sequence is and draws it; `runner` runs it in the VM; `model` says what must become of each step,
and remembers every payment and what was really released: it knows no slots.
"""
