//! Creates an organisation.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use super::create_policy;
use crate::{
    events::{emit_borsh_event, emit_event, with_event_accounts, OrgInitialized},
    state::{presets, seeds, Org, Outlined},
    token,
};
use anchor_lang::{prelude::*, programs::AssociatedToken, IdlType};

/// What an organisation starts with.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct OrgSettings {
    /// SHA-256 of the organisation's id.
    pub org_hash: [u8; 32],
    /// Genesis hash of the cluster.
    pub genesis_hash: [u8; 32],
    /// Runs the vaults.
    pub operator: Address,
    /// Decides disputed escrows.
    pub arbiter: Address,
    /// Signs completion proofs of third parties.
    pub verifier: Address,
    /// Most micro-USDC that the operator moves into vaults in any 24 hours; `u64::MAX` is no limit.
    pub operator_daily_limit: u64,
    /// Seconds until a recipient that the operator registers counts.
    pub attestation_delay: u64,
}

with_event_accounts! {
    /// Accounts of `initialize_org`.
    #[derive(Accounts)]
    #[instruction(args: OrgSettings)]
    pub struct InitializeOrg {
        /// Pays the rent.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// Becomes the authority.
        pub creator: Signer,
        /// The organisation to be.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::ORG, creator.address().as_ref(), &args.org_hash], bump))]
        pub org: UncheckedAccount,
        /// The mint of the USDC; checked by [`token::accepted_mint`].
        pub mint: UncheckedAccount,
        /// The reserve: the organisation's associated token account; made and checked by [`token::associate`].
        #[account(mut)]
        pub reserve_tokens: UncheckedAccount,
        /// Preset of 10, 50 and 500 USDC.
        #[account(mut)]
        pub preset_conservative: UncheckedAccount,
        /// Preset of 100, 500 and 5,000 USDC.
        #[account(mut)]
        pub preset_moderate: UncheckedAccount,
        /// Preset of 1,000, 10,000 and 100,000 USDC.
        #[account(mut)]
        pub preset_permissive: UncheckedAccount,
        /// Preset that pays nothing.
        #[account(mut)]
        pub preset_locked: UncheckedAccount,
        /// The mint's program: SPL Token or Token-2022; checked by [`token::accepted_mint`].
        pub token_program: UncheckedAccount,
        /// Makes the reserve.
        pub associated_token_program: Program<AssociatedToken>,
        /// Makes the accounts.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::initialize_org`].
///
/// # Errors
/// Those of [`token::accepted_mint`] and [`token::associate`].
pub fn handler(ctx: &mut Context<InitializeOrg>, args: OrgSettings) -> Result<()> {
    let a = &mut ctx.accounts;
    let creator = a.creator.address();
    let decimals = token::accepted_mint(a.mint.account(), a.token_program.address())?;
    let seeds: [&[u8]; 3] = [seeds::ORG, creator.as_ref(), &args.org_hash];
    let (mut org, bump) = Outlined::<Account<Org>>::create(a.payer.account(), a.org.account(), &seeds)?;
    token::associate(token::Association {
        payer: a.payer.account(),
        tokens: a.reserve_tokens.account(),
        owner: org.account(),
        mint: a.mint.account(),
        token_program: a.token_program.account(),
        associated_token_program: a.associated_token_program.address(),
        system_program: a.system_program.account(),
    })?;
    org.creator = *creator;
    org.org_hash = args.org_hash;
    org.genesis_hash = args.genesis_hash;
    org.authority = *creator;
    org.operator = args.operator;
    org.arbiter = args.arbiter;
    org.verifier = args.verifier;
    org.mint = *a.mint.address();
    org.token_program = *a.token_program.address();
    org.reserve_tokens = *a.reserve_tokens.address();
    org.operator_daily_limit = args.operator_daily_limit;
    org.attestation_delay = args.attestation_delay;
    org.decimals = decimals;
    org.bump = bump;
    let event = OrgInitialized {
        org: *org.address(),
        creator: org.creator,
        authority: org.authority,
        operator: org.operator,
        arbiter: org.arbiter,
        verifier: org.verifier,
        mint: org.mint,
        reserve_tokens: org.reserve_tokens,
        sequence: org.next_sequence()?,
        operator_daily_limit: org.operator_daily_limit,
        attestation_delay: org.attestation_delay,
        genesis_hash: org.genesis_hash,
    };
    emit_event!(ctx, event);

    let a = &ctx.accounts;
    for (account, key, rules) in [
        (&a.preset_conservative, presets::CONSERVATIVE_KEY, &presets::CONSERVATIVE),
        (&a.preset_moderate, presets::MODERATE_KEY, &presets::MODERATE),
        (&a.preset_permissive, presets::PERMISSIVE_KEY, &presets::PERMISSIVE),
        (&a.preset_locked, presets::LOCKED_KEY, &presets::LOCKED),
    ] {
        let event = create_policy::make(&mut org, &a.payer, account, key, rules, true)?;
        emit_borsh_event!(ctx, event);
    }
    Ok(())
}
