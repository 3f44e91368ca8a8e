//! The shared part of settling an escrow: the accounts and the payout.

use super::set_aside::rent_destination;
use crate::{
    errors::VaultError,
    events::{with_event_accounts, EscrowSettled},
    instructions::clock,
    state::{same_address, Budget, Escrow, Org, Outlined, Unloaded, Vault},
    token::{self, Association, Transfer},
};
use agent_vault_policy::{
    escrow::{Outcome, Settlement},
    UnixTime, Usdc,
};
use anchor_lang::{prelude::*, programs::AssociatedToken};

with_event_accounts! {
    /// Accounts of `complete_escrow`, `refund_escrow`, `resolve_dispute` and `collect_escrow`.
    #[derive(Accounts)]
    pub struct SettleEscrow {
        /// Payer for the receiver's token account, if that does not exist.
        #[account(mut, unsafe(dup))]
        pub payer: Option<Signer>,
        /// The signer that settles: a party that presents the hash of the output, or the arbiter. Not needed for other
        /// ways to settle.
        pub signer: Option<Signer>,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault that pays.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The vault's token account.
        #[account(mut, constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The receiver. Required if it is a vault and its session authority acts or attests, and for creating its
        /// token account.
        pub receiver: Option<UncheckedAccount>,
        /// The receiver's associated token account, if anything is released.
        #[account(mut)]
        pub receiver_tokens: Option<UncheckedAccount>,
        /// The escrow.
        #[account(mut, constraint = same_address(&escrow.vault, vault.address()) @ VaultError::WrongEscrow)]
        pub escrow: Outlined<Account<Escrow>>,
        /// The escrow's token account.
        #[account(mut, constraint = same_address(&escrow.tokens, escrow_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub escrow_tokens: UncheckedAccount,
        /// Payer of the rent, refunded here. Not required to be writable here, because the runtime passes a program
        /// read-only, and a payer that has become a program must not stop a settlement: see [`rent_destination`].
        #[cfg_attr(feature = "idl-build", account(mut))]
        #[account(constraint = same_address(&escrow.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver)]
        pub rent_receiver: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The associated token program, used to create the receiver's token account.
        pub associated_token_program: Option<Program<AssociatedToken>>,
        /// The system program, used to create the receiver's token account.
        pub system_program: Option<Program<System>>,
        /// The instructions sysvar, if the proof is a signature.
        pub instructions: Option<UncheckedAccount>,
        /// The budget charged for the escrow, even if it no longer exists or the vault has a different one now. Its
        /// address is checked in [`crate::state::Charged::credit`]. Collecting does not need it.
        #[account(mut)]
        pub budget: Option<Unloaded<Budget>>,
        /// The parent of that budget, if it was charged too.
        #[account(mut)]
        pub budget_parent: Option<Unloaded<Budget>>,
    }
}

impl SettleEscrow {
    /// Returns the effective time of the vault: the clock, or the time of its last payment if the clock stepped back.
    ///
    /// # Errors
    /// Fails if the runtime has no clock.
    pub fn now(&self) -> Result<UnixTime> {
        Ok(self.vault.ledger.as_policy().time(clock()?))
    }
}

/// Pays both sides, returns the unreleased part of the charge to the ledgers, and closes the escrow's accounts.
///
/// A frozen vault, a paused organisation and the policy do not prevent this. After a split, one side may be impossible
/// to pay, because its token account is frozen, has a different owner or requires a memo. The other side still gets its
/// share. The unpaid share stays in the escrow, and anyone can have it paid out later.
///
/// # Errors
/// The errors of [`crate::state::Charged::credit`]; [`VaultError::ReceiverRequired`], [`VaultError::WrongReceiver`] and
/// [`VaultError::WrongTokenAccount`] if something is released and the receiver's token account is missing or not its
/// own.
#[inline(never)]
pub fn settle(a: &mut SettleEscrow, settlement: &Settlement, now: UnixTime) -> Result<EscrowSettled> {
    let Settlement { outcome, released: Usdc(released), refunded: Usdc(refunded) } = *settlement;
    a.escrow.outcome = outcome as u8;
    a.escrow.released = released;
    a.escrow.receiver_owed = u8::from(released > 0);
    a.escrow.vault_owed = u8::from(refunded > 0);
    if released > 0 {
        make_receiver_tokens(a)?;
    }
    let surplus = pay_sides(a, outcome == Outcome::Split)?;
    let charged = a.escrow.charged;
    charged.credit(&mut a.vault, [a.budget.as_ref(), a.budget_parent.as_ref()], Usdc(refunded))?;

    let receiver_paid = released > 0 && a.escrow.receiver_owed == 0;
    let event = EscrowSettled {
        org: a.escrow.org,
        vault: a.escrow.vault,
        escrow: *a.escrow.address(),
        receiver: a.escrow.receiver,
        output_hash: [0; 32],
        reference: a.escrow.reference,
        sequence: a.vault.next_sequence()?,
        amount: a.escrow.amount,
        released,
        refunded,
        surplus: surplus.amount,
        vault_balance: token::balance(a.vault_tokens.account(), &a.org.token_program)?,
        receiver_balance: receiver_balance(a, receiver_paid)?,
        timestamp: now.0,
        outcome: a.escrow.outcome,
        proof_kind: 0,
        receiver_is_vault: a.escrow.receiver_is_vault,
        receiver_owed: a.escrow.receiver_owed,
        vault_owed: a.escrow.vault_owed,
        surplus_to_receiver: u8::from(surplus.to_receiver),
        reserved: [0; 2],
    };
    close_if_paid(a)?;
    Ok(event)
}

/// Returns the balance of the receiver's token account if it was paid, otherwise zero.
///
/// # Errors
/// [`VaultError::NotATokenAccount`] if that account is not a token account.
pub fn receiver_balance(a: &SettleEscrow, paid: bool) -> Result<u64> {
    match &a.receiver_tokens {
        Some(tokens) if paid => token::balance(tokens.account(), &a.org.token_program),
        _ => Ok(0),
    }
}

/// Creates the receiver's token account if it is missing. The instruction's `payer` pays the rent.
///
/// # Errors
/// [`VaultError::ReceiverRequired`] if an account needed for this is missing; [`VaultError::WrongReceiver`] and
/// [`VaultError::WrongTokenAccount`] if the receiver or its token account is not the escrow's.
pub fn make_receiver_tokens(a: &SettleEscrow) -> Result<()> {
    let tokens = a.receiver_tokens.as_ref().ok_or(VaultError::ReceiverRequired)?;
    require!(same_address(&a.escrow.receiver_tokens, tokens.address()), VaultError::WrongTokenAccount);
    if !tokens.account().owned_by(&System::id()) {
        return Ok(());
    }
    let (Some(payer), Some(receiver), Some(program), Some(system)) =
        (&a.payer, &a.receiver, &a.associated_token_program, &a.system_program)
    else {
        return Err(VaultError::ReceiverRequired.into());
    };
    require!(same_address(&a.escrow.receiver, receiver.address()), VaultError::WrongReceiver);
    token::associate(Association {
        payer: payer.account(),
        tokens: tokens.account(),
        owner: receiver.account(),
        mint: a.mint.account(),
        token_program: a.token_program.account(),
        associated_token_program: program.address(),
        system_program: system.account(),
    })
}

/// Money in an escrow beyond the shares owed, which third parties have sent there.
#[derive(Clone, Copy, Default)]
pub struct Surplus {
    /// The amount paid out, in micro-USDC.
    pub amount: u64,
    /// True if the receiver got this surplus, false if the vault did.
    pub to_receiver: bool,
}

/// Pays each owed side its share, or the remaining balance if money is missing. With `leaves`, the share of a side that
/// cannot be paid stays in the escrow; otherwise the instruction fails in that case, and nothing is paid.
///
/// The surplus is paid to the vault, with the vault's share if it is owed one, so that a deposit into the escrow cannot
/// reach a receiver that the policy refuses. If the vault is owed nothing and cannot be paid, the receiver gets it.
/// Otherwise a donation of a millionth of a dollar could block a completion while the vault's token account is frozen.
///
/// # Errors
/// [`VaultError::WrongTokenAccount`] if the receiver's token account is not its own.
pub fn pay_sides(a: &mut SettleEscrow, leaves: bool) -> Result<Surplus> {
    let held = token::balance(a.escrow_tokens.account(), &a.org.token_program)?;
    let released = if a.escrow.receiver_owed != 0 { a.escrow.released.min(held) } else { 0 };
    let left = held.saturating_sub(released);
    let of_vault = a.escrow.amount.saturating_sub(a.escrow.released).min(left);
    let refunded = if a.escrow.vault_owed != 0 { of_vault } else { 0 };
    let surplus = left.saturating_sub(refunded);
    let pays_receiver = a.escrow.receiver_owed != 0 && can_pay_receiver(a, leaves)?;
    let pays_vault = a.escrow.vault_owed != 0 && can_pay_vault(a, leaves)?;
    let leftover = pays_receiver && a.escrow.vault_owed == 0 && surplus > 0;
    let to_receiver = leftover && !can_pay_vault(a, true)?;
    if pays_receiver {
        pay(a, if to_receiver { released.saturating_add(surplus) } else { released }, true)?;
        a.escrow.receiver_owed = 0;
    }
    let to_vault = pays_vault || (leftover && !to_receiver);
    if to_vault {
        pay(a, refunded.saturating_add(surplus), false)?;
        a.escrow.vault_owed = 0;
    }
    Ok(Surplus { amount: if to_vault || to_receiver { surplus } else { 0 }, to_receiver })
}

fn can_pay_receiver(a: &SettleEscrow, leaves: bool) -> Result<bool> {
    let Some(tokens) = &a.receiver_tokens else {
        return Ok(false);
    };
    require!(same_address(&a.escrow.receiver_tokens, tokens.address()), VaultError::WrongTokenAccount);
    if leaves {
        return token::can_be_paid(tokens.account(), &a.org.token_program, &a.escrow.receiver);
    }
    let owner = token::read(tokens.account(), &a.org.token_program)?.owner;
    require!(same_address(&owner, &a.escrow.receiver), VaultError::WrongTokenAccount);
    Ok(true)
}

fn can_pay_vault(a: &SettleEscrow, leaves: bool) -> Result<bool> {
    if !leaves {
        return Ok(true);
    }
    token::can_be_paid(a.vault_tokens.account(), &a.org.token_program, a.vault.address())
}

/// Closes the escrow's accounts once neither side is owed anything.
///
/// # Errors
/// The errors of [`rent_destination`].
pub fn close_if_paid(a: &mut SettleEscrow) -> Result<()> {
    if a.escrow.receiver_owed != 0 || a.escrow.vault_owed != 0 {
        return Ok(());
    }
    a.vault.open_escrows = a.vault.open_escrows.checked_sub(1).ok_or(VaultError::Overflow)?;
    let end = a.escrow.seed_end();
    let escrow = a.escrow.account();
    let seeds = a.escrow.signer_seeds(&end);
    token::close(&a.org.token_program, a.escrow_tokens.account(), escrow, escrow, &seeds);
    let destination = rent_destination(&a.rent_receiver, a.vault.account())?;
    a.escrow.close(destination)
}

/// Moves `amount` out of the escrow: to the receiver if `to_receiver` is true, otherwise back to the vault.
#[inline(never)]
fn pay(a: &mut SettleEscrow, amount: u64, to_receiver: bool) -> Result<()> {
    let end = a.escrow.seed_end();
    let to = match &a.receiver_tokens {
        Some(tokens) if to_receiver => tokens,
        _ => &a.vault_tokens,
    };
    token::transfer(
        Transfer {
            token_program: &a.org.token_program,
            from: a.escrow_tokens.account(),
            mint: a.mint.account(),
            to: to.account(),
            owner: a.escrow.account(),
            amount,
            decimals: a.org.decimals,
        },
        &a.escrow.signer_seeds(&end),
    );
    Ok(())
}
