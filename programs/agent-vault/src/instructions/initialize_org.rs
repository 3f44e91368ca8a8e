//! Creates an organisation.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use super::create_policy;
use crate::{
    events::{emit_borsh_event, emit_event, with_event_accounts, OrgInitialized},
    state::{presets, seeds, Org, Outlined},
    token,
};
use anchor_lang::{prelude::*, programs::AssociatedToken, IdlType};

/// The initial settings of an organisation.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct OrgSettings {
    /// SHA-256 of the organisation's id.
    pub org_hash: [u8; 32],
    /// Genesis hash of the cluster.
    pub genesis_hash: [u8; 32],
    /// The key that runs the vaults.
    pub operator: Address,
    /// The key that decides disputed escrows.
    pub arbiter: Address,
    /// The key that signs completion proofs of third parties.
    pub verifier: Address,
    /// Maximum micro-USDC that the operator may move into vaults in any 24 hours; `u64::MAX` means no limit.
    pub operator_daily_limit: u64,
    /// Seconds until a recipient's registration by the operator can permit payments.
    pub attestation_delay: u64,
}

with_event_accounts! {
    /// Accounts of `initialize_org`.
    #[derive(Accounts)]
    #[instruction(args: OrgSettings)]
    pub struct InitializeOrg {
        /// Payer of the rent.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The signer that becomes the authority.
        pub creator: Signer,
        /// The organisation to create.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::ORG, creator.address().as_ref(), &args.org_hash], bump))]
        pub org: UncheckedAccount,
        /// The USDC mint. Checked by [`token::accepted_mint`].
        pub mint: UncheckedAccount,
        /// The reserve: the organisation's associated token account. Created and checked by [`token::associate`].
        #[account(mut)]
        pub reserve_tokens: UncheckedAccount,
        /// The preset with limits of 10, 50 and 500 USDC per payment, day and month.
        #[account(mut)]
        pub preset_conservative: UncheckedAccount,
        /// The preset with limits of 100, 500 and 5,000 USDC per payment, day and month.
        #[account(mut)]
        pub preset_moderate: UncheckedAccount,
        /// The preset with limits of 1,000, 10,000 and 100,000 USDC per payment, day and month.
        #[account(mut)]
        pub preset_permissive: UncheckedAccount,
        /// The preset that allows no payments.
        #[account(mut)]
        pub preset_locked: UncheckedAccount,
        /// The mint's program: SPL Token or Token-2022. Checked by [`token::accepted_mint`].
        pub token_program: UncheckedAccount,
        /// The associated token program, used to create the reserve.
        pub associated_token_program: Program<AssociatedToken>,
        /// The system program, used to create the accounts.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::initialize_org`].
///
/// # Errors
/// The errors of [`token::accepted_mint`] and [`token::associate`], and of the creation of the organisation's and the
/// presets' accounts.
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
