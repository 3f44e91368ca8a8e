"""Work that is due without a request: freezes of expired policies, top-ups, refunds of escrows, settlements of allowances."""
