//! Withdraws the dispute of an escrow.

use super::{dispute_escrow::DisputeEscrow, parties::check_party};
use crate::{
    errors::VaultError,
    events::{emit_event, DisputeWithdrawn},
    instructions::clock,
    state::{check_sequence, same_address, NONE},
};
use anchor_lang::prelude::*;

/// See [`crate::agent_vault::withdraw_dispute`].
///
/// The signer that raised a dispute can withdraw it while it still acts for its side: a removed session authority
/// cannot. The operator can also withdraw a dispute that a session authority raised for a vault of its organisation,
/// but not a dispute of a receiver that is no vault.
///
/// # Errors
/// [`VaultError::EscrowNotDisputed`] if there is no dispute; [`VaultError::EscrowDecided`] if the arbiter has already
/// split the escrow; [`VaultError::SequenceMismatch`] if its dispute is a different one than the named one;
/// [`VaultError::Unauthorized`] if the signer may not withdraw this dispute; [`VaultError::SessionExpired`] if the
/// signer's session has expired.
pub fn handler(ctx: &mut Context<DisputeEscrow>, expected_sequence: u64) -> Result<()> {
    let a = &mut ctx.accounts;
    let now = a.vault.ledger.as_policy().time(clock()?);
    let reopened = a.escrow.as_policy().withdraw_dispute(now).map_err(VaultError::from)?;
    check_sequence(expected_sequence, a.escrow.dispute_sequence)?;
    let signer = a.signer.address();
    check_party(signer, &a.org, &a.vault, &a.escrow, a.receiver.as_ref(), now)?;
    let of_a_vault = a.escrow.disputed_by_receiver == 0 || a.escrow.receiver_is_vault != 0;
    let may =
        same_address(&a.escrow.disputed_by, signer) || (of_a_vault && same_address(&a.org.operator, signer));
    require!(may, VaultError::Unauthorized);
    a.escrow.deadline = reopened.deadline.0;
    a.escrow.disputed_at = 0;
    a.escrow.disputed_by = NONE;
    a.escrow.disputed_by_receiver = 0;
    let event = DisputeWithdrawn {
        org: a.escrow.org,
        vault: a.escrow.vault,
        escrow: *a.escrow.address(),
        receiver: a.escrow.receiver,
        signer: *a.signer.address(),
        sequence: a.vault.next_sequence()?,
        timestamp: now.0,
        deadline: a.escrow.deadline,
    };
    emit_event!(ctx, event);
    Ok(())
}
