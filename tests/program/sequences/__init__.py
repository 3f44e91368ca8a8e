"""Random sequences of payments, run in the VM, judged by a checker, and replayed in the native crate.

`steps` defines and draws sequences. `runner` runs them in the VM. `checker` remembers every payment and knows nothing
of slots. `native` replays the same sequence in the policy crate compiled for this machine. `budgets` does all of this
for vaults that share a budget.
"""
