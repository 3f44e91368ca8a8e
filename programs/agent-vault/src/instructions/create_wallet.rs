//! Creates a vault.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletCreated},
    state::{check_version, same_address, seeds, Org, Outlined, Policy, Session, Vault},
    token,
};
use anchor_lang::{prelude::*, programs::AssociatedToken};

with_event_accounts! {
    /// Accounts of `create_wallet`.
    #[derive(Accounts)]
    #[instruction(agent_hash: [u8; 32])]
    pub struct CreateWallet {
        /// Payer of the rent, most of it refunded when the vault is archived.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The organisation's authority. Required if the organisation has the flag `authority_attaches`.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Option<Signer>,
        /// The policy to attach.
        #[account(mut, constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg)]
        pub policy: Outlined<Account<Policy>>,
        /// The vault to create. An archived vault's address stays taken forever.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::VAULT, org.address().as_ref(), &agent_hash], bump))]
        pub vault: UncheckedAccount,
        /// The vault's associated token account. Created and checked by [`token::associate`].
        #[account(mut)]
        pub vault_tokens: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The associated token program, used to create the token account.
        pub associated_token_program: Program<AssociatedToken>,
        /// The system program, used to create the vault.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::create_wallet`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the operator does not sign; [`VaultError::AuthorityRequired`] if the organisation
/// has the flag `authority_attaches` and the authority does not sign; [`VaultError::VersionMismatch`] if the policy is
/// no longer at `policy_version`; the errors of [`token::associate`].
pub fn handler(
    ctx: &mut Context<CreateWallet>,
    agent_hash: [u8; 32],
    session: Option<Session>,
    policy_version: u64,
) -> Result<()> {
    let a = &mut ctx.accounts;
    a.org.check_attaching(a.authority.as_ref())?;
    check_version(policy_version, a.policy.version)?;
    let org = a.org.address();
    let seeds: [&[u8]; 3] = [seeds::VAULT, org.as_ref(), &agent_hash];
    let (mut vault, bump) = Outlined::<Account<Vault>>::create(a.payer.account(), a.vault.account(), &seeds)?;
    token::associate(token::Association {
        payer: a.payer.account(),
        tokens: a.vault_tokens.account(),
        owner: vault.account(),
        mint: a.mint.account(),
        token_program: a.token_program.account(),
        associated_token_program: a.associated_token_program.address(),
        system_program: a.system_program.account(),
    })?;
    a.policy.attach()?;
    vault.org = *org;
    vault.agent_hash = agent_hash;
    vault.policy = *a.policy.address();
    vault.tokens = *a.vault_tokens.address();
    vault.payer = *a.payer.address();
    vault.bump = bump;
    if let Some(session) = session {
        vault.set_session(&session)?;
    }
    let event = WalletCreated {
        org: vault.org,
        vault: *vault.address(),
        policy: vault.policy,
        vault_tokens: vault.tokens,
        sequence: vault.next_sequence()?,
        agent_hash,
        session_authority: vault.session_authority,
        session_expires_at: vault.session_expires_at,
    };
    emit_event!(ctx, event);
    Ok(())
}
