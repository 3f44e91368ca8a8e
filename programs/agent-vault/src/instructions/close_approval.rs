//! Withdraws an approval.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, ApprovalClosed},
    instructions::clock,
    state::{same_address, Approval, Org, Outlined, Vault},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `close_approval`.
    #[derive(Accounts)]
    pub struct CloseApproval {
        /// The operator; anyone once the approval's time has passed.
        pub signer: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault that may pay.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The approval.
        #[account(mut, constraint = same_address(&approval.vault, vault.address()) @ VaultError::WrongApproval)]
        pub approval: Outlined<Account<Approval>>,
        /// Paid the approval's rent.
        #[account(mut, constraint = same_address(&approval.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver, unsafe(dup))]
        pub rent_receiver: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::close_approval`].
///
/// # Errors
/// [`VaultError::Unauthorized`].
pub fn handler(ctx: &mut Context<CloseApproval>) -> Result<()> {
    let now = clock()?.0;
    let CloseApproval { signer, org, vault, approval, rent_receiver, .. } = &mut ctx.accounts;
    let may = now >= approval.expires_at || org.is_operator(signer.address());
    require!(may, VaultError::Unauthorized);
    let event = ApprovalClosed {
        org: vault.org,
        vault: *vault.address(),
        approval: *approval.address(),
        sequence: vault.next_sequence()?,
    };
    approval.close(*rent_receiver.account())?;
    emit_event!(ctx, event);
    Ok(())
}
