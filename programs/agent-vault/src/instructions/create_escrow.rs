//! Locks money of a vault for a task.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use super::{
    set_aside::{set_aside, SetAside},
    spending::{first_payment, judge, use_approval, Spending},
};
use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, EscrowCreated},
    state::{
        frozen, is_archived, live_or_archived, proof, same_address, seeds, terms_hash, AllowlistAccount,
        Approval, Budget, Charged, Escrow, Org, Outlined, Policy, SpendingKind, Unloaded, Vault, NONE,
    },
    token, ID,
};
use agent_vault_policy::escrow;
use anchor_lang::{find_and_verify_program_address, prelude::*, IdlType};
use anchor_spl::associated_token;

/// The terms of an escrow.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct EscrowTerms {
    /// Amount in micro-USDC.
    pub amount: u64,
    /// Reference chosen by the creator of the escrow.
    pub reference: [u8; 16],
    /// SHA-256 of the task's description.
    pub task_hash: [u8; 32],
    /// SHA-256 of the required output hash, for every kind of proof. The terms are public, so they do not contain the
    /// output hash itself, which alone would suffice as a proof.
    pub output_commitment: Option<[u8; 32]>,
    /// Accepted kinds of proof, with a bit `1 << code` for each.
    pub proof_kinds: u8,
    /// Seconds from the creation to the deadline. From then on, the escrow can be refunded but no longer completed. A
    /// dispute stops the clock: its withdrawal moves the deadline by the time that the dispute lasted.
    pub timeout: u32,
}

with_event_accounts! {
    /// Accounts of `create_escrow`.
    #[derive(Accounts)]
    pub struct CreateEscrow {
        /// Payer of the rent, refunded when the escrow is settled.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The session authority or the operator.
        pub signer: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The attached policy.
        #[account(constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg)]
        pub policy: Outlined<Account<Policy>>,
        /// The vault that pays.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg, constraint = same_address(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
        pub vault: Outlined<Account<Vault>>,
        /// The vault's token account.
        #[account(mut, constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The address paid on completion: a live vault of the organisation, or an address that is no account of this
        /// program.
        pub receiver: UncheckedAccount,
        /// The receiver's associated token account. It need not exist yet.
        pub receiver_tokens: UncheckedAccount,
        /// The escrow to create.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::ESCROW, vault.address().as_ref(), &vault.escrow_counter.to_le_bytes()], bump))]
        pub escrow: UncheckedAccount,
        /// The escrow's token account to create.
        #[account(mut)]
        pub escrow_tokens: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The policy's allowlist, if it has one.
        pub allowlist: Option<Unloaded<AllowlistAccount>>,
        /// The receiver's Recipient account. Required if the policy blocks categories or if only an attested domain
        /// of this address is on the allowlist.
        pub recipient: Option<UncheckedAccount>,
        /// The operator, who co-signs above the policy's threshold.
        #[account(constraint = same_address(&org.operator, co_signer.address()) @ VaultError::Unauthorized)]
        pub co_signer: Option<Signer>,
        /// The operator's approval, in place of its signature. Creating the escrow closes it.
        #[account(mut, constraint = same_address(&approval.vault, vault.address()) @ VaultError::WrongApproval)]
        pub approval: Option<Outlined<Account<Approval>>>,
        /// Payer of the approval's rent, refunded here.
        #[account(mut, unsafe(dup))]
        pub approval_rent_receiver: Option<UncheckedAccount>,
        /// The vault's budget, if it has one.
        #[account(mut, constraint = same_address(&vault.budget, budget.address()) @ VaultError::WrongBudget)]
        pub budget: Option<Outlined<Account<Budget>>>,
        /// The parent of the vault's budget, if it has one.
        #[account(mut)]
        pub budget_parent: Option<Outlined<Account<Budget>>>,
        /// The system program, used to create the accounts.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::create_escrow`].
///
/// # Errors
/// The errors of [`judge`]; [`VaultError::ReceiverFrozen`], [`VaultError::ReceiverArchived`] and
/// [`VaultError::WrongOrg`] if the receiver is a frozen or archived vault, or one of a different organisation;
/// [`VaultError::WrongVault`] if the receiver is another account of the program; [`VaultError::WrongTokenAccount`] if
/// `receiver_tokens` is not the receiver's; [`VaultError::InvalidProofKinds`] if the proof kinds are empty or unknown;
/// [`VaultError::InvalidTimeout`] if the timeout is out of range; [`VaultError::TooManyEscrows`] if the policy permits
/// no further open escrow; [`VaultError::InsufficientBalance`] if the vault holds less than the amount; `InvalidSeeds`
/// if another escrow was created first and took this address.
pub fn handler(ctx: &mut Context<CreateEscrow>, terms: &EscrowTerms, bump: u8) -> Result<()> {
    let a = &mut ctx.accounts;
    let org = a.org.address();
    let token_program = &a.org.token_program;
    let vault = *a.vault.account();
    let receiver = a.receiver.address();
    let spending = Spending {
        signer: a.signer.address(),
        org: &a.org,
        policy: &a.policy,
        vault: &a.vault,
        budget: a.budget.as_ref(),
        budget_parent: a.budget_parent.as_ref(),
        account: &vault,
        recipient: receiver,
        amount: terms.amount,
        kind: SpendingKind::Escrow,
        terms: &terms_hash(
            &terms.task_hash,
            terms.output_commitment.as_ref(),
            terms.proof_kinds,
            terms.timeout,
            &a.org.verifier,
            &a.org.arbiter,
        ),
        allowlist: a.allowlist.as_ref(),
        about: a.recipient.as_ref(),
        co_signer: a.co_signer.is_some(),
        approval: a.approval.as_deref(),
        approval_rent_receiver: a.approval_rent_receiver.as_ref(),
    };
    let allowed = judge(&spending)?;
    let payee = first_payment(&spending, &allowed)?;
    let receiver_is_vault = check_receiver(a.receiver.account(), a.receiver_tokens.address(), &a.org, org)?;
    let kinds = terms.proof_kinds;
    require!(kinds != 0 && kinds & !proof::ALL == 0, VaultError::InvalidProofKinds);
    let now = allowed.charges.vault.at;
    let deadline = escrow::Escrow::deadline(now, terms.timeout).ok_or(VaultError::InvalidTimeout)?;
    require!(a.vault.open_escrows < a.policy.open_escrows_limit(), VaultError::TooManyEscrows);
    let balance = token::balance(a.vault_tokens.account(), token_program)?;
    let balance = balance.checked_sub(terms.amount).ok_or(VaultError::InsufficientBalance)?;

    let budgets = [a.budget.as_deref_mut(), a.budget_parent.as_deref_mut()];
    let charged = Charged::record(&mut a.vault, budgets, &allowed.charges)?;
    let counter = a.vault.escrow_counter;
    a.vault.escrow_counter = counter.checked_add(1).ok_or(VaultError::Overflow)?;
    a.vault.open_escrows = a.vault.open_escrows.saturating_add(1);
    let sequence = a.vault.next_sequence()?;

    let index = counter.to_le_bytes();
    let bump_seed = [bump];
    let seeds: [&[u8]; 4] = [seeds::ESCROW, vault.address().as_ref(), &index, &bump_seed];
    let mut escrow = Outlined::<Account<Escrow>>::create_at(a.payer.account(), a.escrow.account(), &seeds)?;
    set_aside(&SetAside {
        payer: &a.payer,
        holder: escrow.account(),
        holder_seeds: &seeds,
        seed: seeds::ESCROW_TOKENS,
        tokens: &a.escrow_tokens,
        owner: a.escrow.address(),
        org: &a.org,
        mint: &a.mint,
        vault: &a.vault,
        vault_tokens: &a.vault_tokens,
        amount: terms.amount,
    })?;
    let mut approval_used = NONE;
    use_approval(&mut a.approval, &a.approval_rent_receiver, &mut approval_used)?;

    escrow.org = *org;
    escrow.vault = *vault.address();
    escrow.receiver = *receiver;
    escrow.receiver_tokens = *a.receiver_tokens.address();
    escrow.tokens = *a.escrow_tokens.address();
    escrow.payer = *a.payer.address();
    escrow.verifier = a.org.verifier;
    escrow.arbiter = a.org.arbiter;
    escrow.task_hash = terms.task_hash;
    escrow.output_commitment = terms.output_commitment.unwrap_or_default();
    escrow.reference = terms.reference;
    escrow.counter = counter;
    escrow.amount = terms.amount;
    escrow.created_at = now.0;
    escrow.deadline = deadline.0;
    escrow.charged = charged;
    escrow.proof_kinds = terms.proof_kinds;
    escrow.has_output_commitment = u8::from(terms.output_commitment.is_some());
    escrow.receiver_is_vault = u8::from(receiver_is_vault);
    escrow.bump = bump;

    let event = EscrowCreated {
        org: *org,
        vault: *vault.address(),
        policy: a.vault.policy,
        escrow: *a.escrow.address(),
        receiver: *receiver,
        signer: *a.signer.address(),
        approval: approval_used,
        payer: escrow.payer,
        task_hash: terms.task_hash,
        output_commitment: escrow.output_commitment,
        reference: terms.reference,
        sequence,
        counter,
        amount: terms.amount,
        balance,
        timestamp: now.0,
        deadline: deadline.0,
        proof_kinds: terms.proof_kinds,
        has_output_commitment: escrow.has_output_commitment,
        receiver_is_vault: escrow.receiver_is_vault,
        co_signed: u8::from(allowed.co_signed),
        by_session: u8::from(allowed.by_session),
        payee,
        reserved: [0; 2],
    };
    emit_event!(ctx, event);
    Ok(())
}

/// Returns true if the receiver is a vault, after checking that `tokens` is the token account where the receiver is
/// paid.
///
/// A vault is recognised by its account, so a vault of another organisation cannot pass as a plain address. An address
/// that becomes a vault only later, of any organisation, does pass. It is indistinguishable from a smart wallet's
/// address, and refusing all addresses off the curve would refuse smart wallets too. For a plain address, the token
/// account is derived, so that no caller can choose an account that the receiver does not watch.
fn check_receiver(
    receiver: &AccountView,
    tokens: &Address,
    org: &Org,
    org_address: &Address,
) -> Result<bool> {
    if receiver.owned_by(&ID) {
        let vault = live_or_archived(receiver)?;
        require!(same_address(&vault.org, org_address), VaultError::WrongOrg);
        require!(!is_archived(receiver)?, VaultError::ReceiverArchived);
        require!(vault.frozen == frozen::NO, VaultError::ReceiverFrozen);
        require!(same_address(&vault.tokens, tokens), VaultError::WrongTokenAccount);
        return Ok(true);
    }
    let seeds: [&[u8]; 3] = [receiver.address().as_ref(), org.token_program.as_ref(), org.mint.as_ref()];
    find_and_verify_program_address(&seeds, &associated_token::ID, tokens)
        .map_err(|_| VaultError::WrongTokenAccount)?;
    Ok(false)
}
