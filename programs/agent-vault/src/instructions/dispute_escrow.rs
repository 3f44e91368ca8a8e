//! Stops an escrow's deadline until its arbiter decides or the dispute is withdrawn. If neither happens within 30 days,
//! anyone may refund the escrow.

use super::parties::check_party;
use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, EscrowDisputed},
    instructions::clock,
    state::{same_address, Escrow, Org, Outlined, Vault},
};
use agent_vault_policy::escrow::Side;
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `dispute_escrow` and `withdraw_dispute`.
    #[derive(Accounts)]
    pub struct DisputeEscrow {
        /// A party: the operator, a side's live session authority, or the receiving address.
        pub signer: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault that pays.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The receiving vault, if its session authority signs.
        pub receiver: Option<UncheckedAccount>,
        /// The escrow.
        #[account(mut, constraint = same_address(&escrow.vault, vault.address()) @ VaultError::WrongEscrow)]
        pub escrow: Outlined<Account<Escrow>>,
    }
}

/// See [`crate::agent_vault::dispute_escrow`].
///
/// # Errors
/// [`VaultError::EscrowExpired`], [`VaultError::EscrowDisputed`] and [`VaultError::EscrowDecided`] if the escrow is in
/// that state; [`VaultError::DisputeRaisedBefore`] if the signer's side has raised a dispute before;
/// [`VaultError::Unauthorized`] if the signer is no party; [`VaultError::SessionExpired`] if the signer's session has
/// expired.
pub fn handler(
    ctx: &mut Context<DisputeEscrow>,
    reason_hash: [u8; 32],
    evidence_hash: [u8; 32],
) -> Result<()> {
    let a = &mut ctx.accounts;
    let now = a.vault.ledger.as_policy().time(clock()?);
    let side = check_party(a.signer.address(), &a.org, &a.vault, &a.escrow, a.receiver.as_ref(), now)?;
    a.escrow.raised = a.escrow.as_policy().dispute(now, side).map_err(VaultError::from)?.raised;
    a.escrow.disputed_at = now.0;
    a.escrow.disputed_by = *a.signer.address();
    a.escrow.disputed_by_receiver = u8::from(side == Side::Receiver);
    a.escrow.dispute_sequence = a.vault.next_sequence()?;
    let event = EscrowDisputed {
        org: a.escrow.org,
        vault: a.escrow.vault,
        escrow: *a.escrow.address(),
        receiver: a.escrow.receiver,
        signer: *a.signer.address(),
        reason_hash,
        evidence_hash,
        sequence: a.escrow.dispute_sequence,
        timestamp: now.0,
    };
    emit_event!(ctx, event);
    Ok(())
}
