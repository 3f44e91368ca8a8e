//! Changes a vault's session authority or policy.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletUpdated},
    state::{check_sequence, check_version, same_address, Org, Outlined, Policy, Session, Vault},
};
use anchor_lang::{prelude::*, IdlType};

/// A new session of a vault.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct SessionChange {
    /// The new session.
    pub session: Session,
    /// The vault's present number of sessions.
    pub expected_sessions: u64,
}

/// A new policy of a vault.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct PolicyChange {
    /// Version of the new policy.
    pub policy_version: u64,
    /// The vault's present number of attachments.
    pub expected_attachments: u64,
}

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
/// [`VaultError::SequenceMismatch`] if the vault's number of sessions or attachments is not the expected one;
/// [`VaultError::VersionMismatch`] if the new policy is no longer at the named version; [`VaultError::PolicyRequired`]
/// unless both policies and `policy_change` are given, or none of them; [`VaultError::AuthorityRequired`] if a new
/// policy is given, the organisation has the flag `authority_attaches` and the authority does not sign.
pub fn handler(
    ctx: &mut Context<UpdateWallet>,
    session_change: Option<SessionChange>,
    policy_change: Option<PolicyChange>,
) -> Result<()> {
    let UpdateWallet { org, authority, vault, policy, new_policy, .. } = &mut ctx.accounts;
    match (policy, new_policy, policy_change) {
        (None, None, None) => {}
        (Some(policy), Some(new_policy), Some(change)) => {
            org.check_attaching(authority.as_ref())?;
            vault.count_attachment(change.expected_attachments)?;
            check_version(change.policy_version, new_policy.version)?;
            policy.detach()?;
            new_policy.attach()?;
            vault.policy = *new_policy.address();
        }
        _ => return Err(VaultError::PolicyRequired.into()),
    }
    if let Some(change) = session_change {
        check_sequence(change.expected_sessions, vault.sessions)?;
        vault.set_session(&change.session)?;
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
