//! Pays the shares left in a decided escrow.

use super::settle_escrow::{close_if_paid, make_receiver_tokens, pay_sides, receiver_balance, SettleEscrow};
use crate::{
    errors::VaultError,
    events::{emit_event, EscrowCollected},
};
use anchor_lang::prelude::*;

/// See [`crate::agent_vault::collect_escrow`].
///
/// # Errors
/// [`VaultError::EscrowUndecided`] if the escrow has not been split; [`VaultError::NothingToCollect`] if no share
/// that is left can be paid; the errors of [`make_receiver_tokens`].
pub fn handler(ctx: &mut Context<SettleEscrow>) -> Result<()> {
    let a = &mut ctx.accounts;
    require!(a.escrow.outcome != 0, VaultError::EscrowUndecided);
    let now = a.now()?;
    let (receiver_owed, vault_owed) = (a.escrow.receiver_owed, a.escrow.vault_owed);
    if receiver_owed != 0 && a.receiver_tokens.is_some() {
        make_receiver_tokens(a)?;
    }
    let surplus = pay_sides(a, true)?;
    let receiver_paid = receiver_owed != a.escrow.receiver_owed;
    let vault_paid = vault_owed != a.escrow.vault_owed;
    require!(receiver_paid || vault_paid, VaultError::NothingToCollect);
    let refunded = a.escrow.amount.saturating_sub(a.escrow.released);
    let event = EscrowCollected {
        org: a.escrow.org,
        vault: a.escrow.vault,
        escrow: *a.escrow.address(),
        receiver: a.escrow.receiver,
        reference: a.escrow.reference,
        sequence: a.vault.next_sequence()?,
        released: if receiver_paid { a.escrow.released } else { 0 },
        refunded: if vault_paid { refunded } else { 0 },
        surplus: surplus.amount,
        vault_balance: crate::token::balance(a.vault_tokens.account(), &a.org.token_program)?,
        receiver_balance: receiver_balance(a, receiver_paid)?,
        timestamp: now.0,
        receiver_is_vault: a.escrow.receiver_is_vault,
        remains: u8::from(a.escrow.receiver_owed != 0 || a.escrow.vault_owed != 0),
        surplus_to_receiver: u8::from(surplus.to_receiver),
        reserved: [0; 5],
    };
    close_if_paid(a)?;
    emit_event!(ctx, event);
    Ok(())
}
