//! Sets money of a vault aside, so that a delegate can pay it out.

use super::{
    set_aside::{set_aside, SetAside},
    spending::{first_payment, judge, use_approval, Spending},
};
use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, AllowanceGranted},
    state::{
        allowance_seeds, hold, same_address, seeds, Allowance, AllowlistAccount, Approval, Budget,
        BudgetLevel, Org, Outlined, Policy, SpendingKind, Unloaded, Vault, LEVEL_COUNT,
        MAX_ALLOWANCE_SECONDS, MAX_OPEN_ALLOWANCES, NONE,
    },
    token::{self, Approve},
    ID,
};
use anchor_lang::{bytemuck::Zeroable, prelude::*};

with_event_accounts! {
    /// Accounts of `grant_allowance`.
    #[derive(Accounts)]
    pub struct GrantAllowance {
        /// Payer of the rent, refunded when the allowance is settled.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The session authority or the operator.
        pub signer: Signer,
        /// The organisation's operator, who vouches for the delegate's key. This signature is not a co-signature.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
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
        /// The token account to be paid. Its owner is the recipient that the policy judges.
        pub destination: UncheckedAccount,
        /// The key that signs the transfer.
        pub delegate: UncheckedAccount,
        /// The allowance to create.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::ALLOWANCE, vault.address().as_ref(), &vault.allowance_counter.to_le_bytes()], bump))]
        pub allowance: UncheckedAccount,
        /// The allowance's token account to create.
        #[account(mut)]
        pub allowance_tokens: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The policy's allowlist, if it has one.
        pub allowlist: Option<Unloaded<AllowlistAccount>>,
        /// The recipient's Recipient account. Required if the policy blocks categories or if only an attested domain
        /// of this address is on the allowlist.
        pub recipient: Option<UncheckedAccount>,
        /// The operator's approval of this allowance, for amounts above the policy's threshold. The grant closes it.
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

/// See [`crate::agent_vault::grant_allowance`].
///
/// # Errors
/// The errors of [`judge`]; [`VaultError::AllowancesNotAllowed`] if the policy does not permit allowances;
/// [`VaultError::TooManyAllowances`] if the vault has [`MAX_OPEN_ALLOWANCES`] outstanding;
/// [`VaultError::InvalidAllowanceTime`] if `expires_at` is not in the future, or is later than the longest lifetime,
/// the session, the policy or a budget allows; [`VaultError::InsufficientBalance`] if the vault holds less than the amount;
/// [`VaultError::UnusableDelegate`] if the delegate is address zero, an account of this program, or the operator, the
/// authority or the session authority; the errors of [`token::payable_owner`] for `destination`; `InvalidSeeds` if
/// another allowance was granted first and took this address.
pub fn handler(
    ctx: &mut Context<GrantAllowance>,
    amount: u64,
    reference: [u8; 16],
    expires_at: i64,
    bump: u8,
) -> Result<()> {
    let a = &mut ctx.accounts;
    let token_program = &a.org.token_program;
    let vault = *a.vault.account();
    require!(a.policy.allows_allowances(), VaultError::AllowancesNotAllowed);
    require!(a.vault.open_allowances < MAX_OPEN_ALLOWANCES, VaultError::TooManyAllowances);
    let destination = a.destination.account();
    let recipient = token::payable_owner(destination, token_program, a.mint.address())?;
    check_delegate(a)?;
    let spending = Spending {
        signer: a.signer.address(),
        org: &a.org,
        policy: &a.policy,
        vault: &a.vault,
        budget: a.budget.as_ref(),
        budget_parent: a.budget_parent.as_ref(),
        account: &vault,
        recipient: &recipient,
        amount,
        kind: SpendingKind::Allowance,
        terms: &[0; 32],
        allowlist: a.allowlist.as_ref(),
        about: a.recipient.as_ref(),
        // The operator signs every grant, so that signature does not express consent to this amount.
        co_signer: false,
        approval: a.approval.as_deref(),
        approval_rent_receiver: a.approval_rent_receiver.as_ref(),
    };
    let allowed = judge(&spending)?;
    let payee = first_payment(&spending, &allowed)?;
    let now = allowed.charges.vault.at.0;
    let mut latest = now.saturating_add(MAX_ALLOWANCE_SECONDS);
    if allowed.by_session {
        latest = latest.min(a.vault.session_expires_at);
    }
    let budgets =
        [&a.budget, &a.budget_parent].map(|budget| budget.as_ref().and_then(|budget| budget.expiry()));
    for expiry in [a.policy.rules().expiry].into_iter().chain(budgets).flatten() {
        latest = latest.min(expiry.0);
    }
    require!(now < expires_at && expires_at <= latest, VaultError::InvalidAllowanceTime);
    let balance = token::balance(a.vault_tokens.account(), token_program)?;
    let balance = balance.checked_sub(amount).ok_or(VaultError::InsufficientBalance)?;

    let mut levels = [BudgetLevel::zeroed(); LEVEL_COUNT];
    let budgets = [a.budget.as_deref_mut(), a.budget_parent.as_deref_mut()];
    let level_count = hold(&mut a.vault, budgets, &allowed.charges, &mut levels)?;
    let counter = a.vault.allowance_counter;
    a.vault.allowance_counter = counter.checked_add(1).ok_or(VaultError::Overflow)?;
    a.vault.open_allowances = a.vault.open_allowances.saturating_add(1);
    let sequence = a.vault.next_sequence()?;

    let end = (counter.to_le_bytes(), [bump]);
    let seeds = allowance_seeds(vault.address(), &end);
    let mut allowance =
        Outlined::<Account<Allowance>>::create_at(a.payer.account(), a.allowance.account(), &seeds)?;
    set_aside(&SetAside {
        payer: &a.payer,
        holder: allowance.account(),
        holder_seeds: &seeds,
        seed: seeds::ALLOWANCE_TOKENS,
        tokens: &a.allowance_tokens,
        owner: vault.address(),
        org: &a.org,
        mint: &a.mint,
        vault: &a.vault,
        vault_tokens: &a.vault_tokens,
        amount,
    })?;
    let vault_bump = [a.vault.bump];
    token::approve(
        &Approve {
            token_program,
            tokens: a.allowance_tokens.account(),
            mint: a.mint.account(),
            delegate: a.delegate.account(),
            owner: a.vault.account(),
            amount,
            decimals: a.org.decimals,
        },
        &a.vault.signer_seeds(&vault_bump),
    );
    let mut approval_used = NONE;
    use_approval(&mut a.approval, &a.approval_rent_receiver, &mut approval_used)?;

    allowance.org = *a.org.address();
    allowance.vault = *vault.address();
    allowance.policy = a.vault.policy;
    allowance.recipient = recipient;
    allowance.destination = *a.destination.address();
    allowance.delegate = *a.delegate.address();
    allowance.tokens = *a.allowance_tokens.address();
    allowance.payer = *a.payer.address();
    allowance.level_count = level_count;
    allowance.levels = levels;
    allowance.reference = reference;
    allowance.counter = counter;
    allowance.amount = amount;
    allowance.policy_version = a.policy.version;
    allowance.granted_at = now;
    allowance.expires_at = expires_at;
    allowance.bump = bump;

    let event = AllowanceGranted {
        org: allowance.org,
        vault: allowance.vault,
        policy: allowance.policy,
        allowance: *allowance.address(),
        recipient,
        destination: allowance.destination,
        delegate: allowance.delegate,
        tokens: allowance.tokens,
        signer: *a.signer.address(),
        approval: approval_used,
        payer: allowance.payer,
        budget: a.vault.budget,
        reference,
        sequence,
        counter,
        amount,
        balance,
        timestamp: now,
        expires_at,
        policy_version: allowance.policy_version,
        co_signed: u8::from(allowed.co_signed),
        by_session: u8::from(allowed.by_session),
        payee,
        reserved: [0; 5],
    };
    emit_event!(ctx, event);
    Ok(())
}

/// Refuses a delegate that cannot be a key for this grant alone: address zero, an account of this program, the vault's
/// session authority, the operator or the authority.
///
/// # Errors
/// [`VaultError::UnusableDelegate`] if the delegate is one of these.
fn check_delegate(a: &GrantAllowance) -> Result<()> {
    let delegate = a.delegate.address();
    let taken = [&NONE, &a.vault.session_authority, &a.org.operator, &a.org.authority];
    let usable = !a.delegate.owned_by(&ID) && taken.iter().all(|address| !same_address(address, delegate));
    require!(usable, VaultError::UnusableDelegate);
    Ok(())
}
