//! Divides a disputed escrow.

use super::settle_escrow::{settle, SettleEscrow};
use crate::{
    errors::VaultError,
    events::emit_event,
    state::{check_sequence, same_address},
};
use agent_vault_policy::Usdc;
use anchor_lang::prelude::*;

/// See [`crate::agent_vault::resolve_dispute`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the escrow's arbiter does not sign; [`VaultError::EscrowDecided`] if the arbiter has
/// already split the escrow; [`VaultError::EscrowNotDisputed`] if it is not disputed; [`VaultError::SequenceMismatch`]
/// if its dispute is a different one than the named one; [`VaultError::EscrowAmountExceeded`] if `released` exceeds the
/// locked amount; the errors of [`settle`].
pub fn handler(ctx: &mut Context<SettleEscrow>, released: u64, expected_sequence: u64) -> Result<()> {
    let a = &mut ctx.accounts;
    let by_arbiter =
        a.signer.as_ref().is_some_and(|signer| same_address(&a.escrow.arbiter, signer.address()));
    require!(by_arbiter, VaultError::Unauthorized);
    let now = a.now()?;
    let settlement = a.escrow.as_policy().resolve(Usdc(released)).map_err(VaultError::from)?;
    check_sequence(expected_sequence, a.escrow.dispute_sequence)?;
    let event = settle(a, &settlement, now)?;
    emit_event!(ctx, event);
    Ok(())
}
