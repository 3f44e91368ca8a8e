"""Random sequences of payments and escrows between two vaults and an outsider, run in the VM and predicted by a model.

`steps` defines and draws sequences. `runner` runs them in the VM. `model` predicts the result of each step, remembering
every payment and what was really released; it knows nothing of slots.
"""
