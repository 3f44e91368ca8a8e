"""Work that is due without a request: expiry freezes, top-ups, refunds of escrows, settlements of allowances."""
