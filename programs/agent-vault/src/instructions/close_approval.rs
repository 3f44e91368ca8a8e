//! Withdraws an approval.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, ApprovalClosed},
    instructions::clock,
    state::{count_change, live_or_archived, same_address, Approval, ArchivedVault, Org, Outlined, Unloaded},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `close_approval`.
    #[derive(Accounts)]
    pub struct CloseApproval {
        /// The operator, or anyone once the approval has expired.
        pub signer: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault that may pay, live or archived. Checked by [`live_or_archived`].
        #[account(mut)]
        pub vault: Unloaded<ArchivedVault>,
        /// The approval.
        #[account(mut, constraint = same_address(&approval.vault, vault.address()) @ VaultError::WrongApproval)]
        pub approval: Outlined<Account<Approval>>,
        /// Payer of the approval's rent, refunded here.
        #[account(mut, constraint = same_address(&approval.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver, unsafe(dup))]
        pub rent_receiver: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::close_approval`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the approval has not expired and the signer is not the operator;
/// [`VaultError::WrongVault`] if `vault` is not a vault; [`VaultError::WrongOrg`] if it belongs to a different
/// organisation.
pub fn handler(ctx: &mut Context<CloseApproval>) -> Result<()> {
    // Use the cluster's time, because an archived vault has no ledger. If the clock has stepped back, it is behind the
    // vault's time: an approval then expires for payments first, and a little later anyone can close it.
    let now = clock()?.0;
    let CloseApproval { signer, org, vault, approval, rent_receiver, .. } = &mut ctx.accounts;
    let may = now >= approval.expires_at || org.is_operator(signer.address());
    require!(may, VaultError::Unauthorized);
    let mut view = *vault.account();
    let mut fields = live_or_archived(&view)?;
    require!(same_address(&fields.org, org.address()), VaultError::WrongOrg);
    let event = ApprovalClosed {
        org: fields.org,
        vault: *view.address(),
        approval: *approval.address(),
        sequence: count_change(&mut view, &mut fields)?,
    };
    approval.close(*rent_receiver.account())?;
    emit_event!(ctx, event);
    Ok(())
}
