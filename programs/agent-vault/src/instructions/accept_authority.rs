//! The proposed authority takes over the authority's role.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, AuthorityAccepted},
    state::{check_sequence, same_address, Org, Outlined, NONE},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `accept_authority`.
    #[derive(Accounts)]
    pub struct AcceptAuthority {
        /// The proposed authority.
        #[account(constraint = same_address(&org.pending_authority, new_authority.address()) @ VaultError::Unauthorized)]
        pub new_authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
    }
}

/// See [`crate::agent_vault::accept_authority`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the signer is not the proposed authority; [`VaultError::SequenceMismatch`] if the
/// organisation is no longer at `expected_sequence`.
pub fn handler(ctx: &mut Context<AcceptAuthority>, expected_sequence: u64) -> Result<()> {
    let org = &mut ctx.accounts.org;
    check_sequence(expected_sequence, org.authority_sequence)?;
    let previous = org.authority;
    org.authority = org.pending_authority;
    org.pending_authority = NONE;
    let sequence = org.next_authority_sequence()?;
    let org = &ctx.accounts.org;
    emit_event!(ctx, AuthorityAccepted { org: *org.address(), previous, authority: org.authority, sequence });
    Ok(())
}
