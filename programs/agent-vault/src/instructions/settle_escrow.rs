//! What the ways to settle an escrow share: the accounts, and the settling.

use crate::{
    errors::VaultError,
    events::{with_event_accounts, EscrowSettled},
    instructions::clock,
    state::{same_address, Escrow, Org, Outlined, Vault},
    token::{self, Association, Transfer},
};
use agent_vault_policy::{escrow::Settlement, UnixTime, Usdc};
use anchor_lang::{prelude::*, programs::AssociatedToken};

with_event_accounts! {
    /// Accounts of `complete_escrow`, `refund_escrow` and `resolve_dispute`.
    #[derive(Accounts)]
    pub struct SettleEscrow {
        /// Pays for the receiver's token account when it does not exist.
        #[account(mut, unsafe(dup))]
        pub payer: Option<Signer>,
        /// Who decides: a party that shows an output's hash, or the arbiter.
        pub signer: Option<Signer>,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault that pays.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// Its token account.
        #[account(mut, constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The receiver, when it is a vault whose session authority acts or attests.
        pub receiver: Option<UncheckedAccount>,
        /// The receiver's associated token account, when anything is released.
        #[account(mut)]
        pub receiver_tokens: Option<UncheckedAccount>,
        /// The escrow.
        #[account(mut, constraint = same_address(&escrow.vault, vault.address()) @ VaultError::WrongEscrow)]
        pub escrow: Outlined<Account<Escrow>>,
        /// Its token account.
        #[account(mut, constraint = same_address(&escrow.tokens, escrow_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub escrow_tokens: UncheckedAccount,
        /// Paid the rent. Not required to be writable: a payer that can hold no money any more stops no settlement.
        #[cfg_attr(feature = "idl-build", account(mut))]
        #[account(constraint = same_address(&escrow.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver)]
        pub rent_receiver: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// Makes the receiver's token account.
        pub associated_token_program: Option<Program<AssociatedToken>>,
        /// Makes the receiver's token account.
        pub system_program: Option<Program<System>>,
        /// The instructions sysvar, where a signature is the proof.
        pub instructions: Option<UncheckedAccount>,
    }
}

impl SettleEscrow {
    /// The time that counts for the vault.
    ///
    /// # Errors
    /// When the runtime has no clock.
    pub fn now(&self) -> Result<UnixTime> {
        Ok(self.vault.ledger.as_policy().time(clock()?))
    }
}

/// Pays both sides, gives back to the ledger what was charged and not released, and closes the escrow's accounts.
///
/// Freeze, pause and policy do not count here: what is locked always comes out.
///
/// # Errors
/// [`VaultError::WrongReceiver`] and [`VaultError::WrongTokenAccount`] when something is released and the receiver's
/// token account is not there or not its own.
#[inline(never)]
pub fn settle(a: &mut SettleEscrow, settlement: &Settlement, now: UnixTime) -> Result<EscrowSettled> {
    let token_program = a.org.token_program;
    let held = token::balance(a.escrow_tokens.account(), &token_program)?;
    // The escrow holds its amount, and what strangers sent it: that goes back, too.
    let released = settlement.released.0.min(held);
    let rest = held.saturating_sub(released);
    if released > 0 {
        prepare_receiver(a)?;
        pay(a, released, true)?;
    }
    if rest > 0 {
        pay(a, rest, false)?;
    }
    let refunded = a.escrow.amount.saturating_sub(released);
    let place = a.escrow.place();
    a.vault.ledger.as_policy_mut().credit(place, Usdc(refunded));
    a.vault.open_escrows = a.vault.open_escrows.checked_sub(1).ok_or(VaultError::Overflow)?;

    let receiver_balance = match &a.receiver_tokens {
        Some(tokens) if released > 0 => token::balance(tokens.account(), &token_program)?,
        _ => 0,
    };
    let event = EscrowSettled {
        org: a.escrow.org,
        vault: a.escrow.vault,
        escrow: *a.escrow.address(),
        receiver: a.escrow.receiver,
        output_hash: [0; 32],
        sequence: a.vault.next_sequence()?,
        amount: a.escrow.amount,
        released,
        refunded,
        vault_balance: token::balance(a.vault_tokens.account(), &token_program)?,
        receiver_balance,
        timestamp: now.0,
        outcome: settlement.outcome as u8,
        proof_kind: 0,
        receiver_is_vault: a.escrow.receiver_is_vault,
        reserved: [0; 5],
    };
    let end = a.escrow.seed_end();
    token::close(&token_program, a.escrow_tokens.account(), a.escrow.account(), &a.escrow.signer_seeds(&end));
    // An address that became a program's, or a program, may be unable to take money; then the vault takes it.
    let payer_can = a.rent_receiver.account().owned_by(&System::id());
    let destination = if payer_can { *a.rent_receiver.account() } else { *a.vault.account() };
    a.escrow.close(destination)?;
    Ok(event)
}

/// Makes the receiver's token account where it is missing, at the caller's cost, and checks that it is the receiver's.
fn prepare_receiver(a: &mut SettleEscrow) -> Result<()> {
    let tokens = a.receiver_tokens.as_ref().ok_or(VaultError::WrongReceiver)?;
    require!(same_address(&a.escrow.receiver_tokens, tokens.address()), VaultError::WrongTokenAccount);
    if tokens.account().owned_by(&System::id()) {
        let (Some(payer), Some(receiver)) = (&a.payer, &a.receiver) else {
            return Err(VaultError::WrongReceiver.into());
        };
        require!(same_address(&a.escrow.receiver, receiver.address()), VaultError::WrongReceiver);
        let (Some(program), Some(system)) = (&a.associated_token_program, &a.system_program) else {
            return Err(VaultError::WrongTokenProgram.into());
        };
        token::associate(Association {
            payer: payer.account(),
            tokens: tokens.account(),
            owner: receiver.account(),
            mint: a.mint.account(),
            token_program: a.token_program.account(),
            associated_token_program: program.address(),
            system_program: system.account(),
        })?;
    }
    let owner = token::read(tokens.account(), &a.org.token_program)?.owner;
    require!(same_address(&owner, &a.escrow.receiver), VaultError::WrongTokenAccount);
    Ok(())
}

/// Moves money out of the escrow: to the receiver, or back to the vault.
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
