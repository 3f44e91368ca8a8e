"""Random sequences of payments, run in the VM, watched by a checker, and repeated in the native crate.

`steps` says what a sequence is and draws it; `runner` runs it in the VM; `checker` remembers every payment and knows no
slots; `native` runs the same sequence in the policy crate compiled for this machine.
"""
