//! Refunds an escrow after its deadline, or after a dispute that the arbiter did not decide in time.

use super::settle_escrow::{settle, SettleEscrow};
use crate::{errors::VaultError, events::emit_event};
use anchor_lang::prelude::*;

/// See [`crate::agent_vault::refund_escrow`].
///
/// # Errors
/// [`VaultError::EscrowDecided`] if the arbiter has already split the escrow; [`VaultError::EscrowNotExpired`] before
/// the time of a refund; the errors of [`settle`].
pub fn handler(ctx: &mut Context<SettleEscrow>) -> Result<()> {
    let a = &mut ctx.accounts;
    let now = a.now()?;
    let settlement = a.escrow.as_policy().refund(now).map_err(VaultError::from)?;
    let event = settle(a, &settlement, now)?;
    emit_event!(ctx, event);
    Ok(())
}
