//! Changes a vault's session authority or policy.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletUpdated},
    state::{same_address, Org, Outlined, Policy, Session, Vault},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `update_wallet`.
    #[derive(Accounts)]
    pub struct UpdateWallet {
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The organisation's authority. Required for a new policy if the organisation has the flag
        /// `authority_attaches`.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Option<Signer>,
        /// The attached policy. Required if a new policy replaces it.
        #[account(mut, address = vault.policy @ VaultError::WrongPolicy)]
        pub policy: Option<Outlined<Account<Policy>>>,
        /// The policy to attach.
        #[account(mut, constraint = same_address(&new_policy.org, org.address()) @ VaultError::WrongOrg)]
        pub new_policy: Option<Outlined<Account<Policy>>>,
    }
}

/// See [`crate::agent_vault::update_wallet`].
///
/// # Errors
/// [`VaultError::PolicyRequired`] if only one of the two policies is given; [`VaultError::AuthorityRequired`] if a
/// policy is attached, the organisation has the flag `authority_attaches` and the authority does not sign.
pub fn handler(ctx: &mut Context<UpdateWallet>, session: Option<Session>) -> Result<()> {
    let UpdateWallet { org, authority, vault, policy, new_policy, .. } = &mut ctx.accounts;
    match (policy, new_policy) {
        (None, None) => {}
        (Some(policy), Some(new_policy)) => {
            org.check_attaching(authority.as_ref())?;
            policy.detach()?;
            new_policy.attach()?;
            vault.policy = *new_policy.address();
        }
        _ => return Err(VaultError::PolicyRequired.into()),
    }
    if let Some(session) = session {
        vault.set_session(&session);
    }
    let event = WalletUpdated {
        org: vault.org,
        vault: *vault.address(),
        policy: vault.policy,
        sequence: vault.next_sequence()?,
        session_authority: vault.session_authority,
        session_expires_at: vault.session_expires_at,
    };
    emit_event!(ctx, event);
    Ok(())
}
