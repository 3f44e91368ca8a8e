//! Money set aside in a separate token account, in the same way for an escrow and for an allowance.

use crate::{
    state::{create_seeded, Org, Outlined, Seeded, Vault},
    token::{self, Transfer},
};
use anchor_lang::prelude::*;

/// The accounts and the amount of a transfer from a vault into the token account of a new escrow or allowance.
pub struct SetAside<'a> {
    /// Payer of the rent.
    pub payer: &'a Signer,
    /// The escrow or allowance. The token account's address is derived from its address.
    pub holder: &'a AccountView,
    /// Seeds that sign for the holder.
    pub holder_seeds: &'a [&'a [u8]; 4],
    /// The seed that derives the token account's address from the holder's.
    pub seed: &'a [u8],
    /// The token account to create.
    pub tokens: &'a UncheckedAccount,
    /// The token account's owner.
    pub owner: &'a Address,
    /// The organisation.
    pub org: &'a Org,
    /// The organisation's mint.
    pub mint: &'a UncheckedAccount,
    /// The vault that pays.
    pub vault: &'a Outlined<Account<Vault>>,
    /// The vault's token account.
    pub vault_tokens: &'a UncheckedAccount,
    /// Amount in micro-USDC.
    pub amount: u64,
}

/// Creates the token account and moves the amount from the vault into it.
///
/// # Errors
/// The errors of [`create_seeded`].
#[inline(never)]
pub fn set_aside(aside: &SetAside) -> Result<()> {
    let SetAside { payer, holder, holder_seeds, seed, tokens, owner, org, mint, vault, vault_tokens, amount } =
        *aside;
    let token_program = &org.token_program;
    create_seeded(&Seeded {
        payer: payer.account(),
        account: tokens.account(),
        base: holder,
        base_seeds: holder_seeds,
        seed,
        space: token::ACCOUNT_SPACE,
        owner: token_program,
    })?;
    token::initialize(token_program, tokens.account(), mint.account(), owner);
    let bump = [vault.bump];
    token::transfer(
        Transfer {
            token_program,
            from: vault_tokens.account(),
            mint: mint.account(),
            to: tokens.account(),
            owner: vault.account(),
            amount,
            decimals: org.decimals,
        },
        &vault.signer_seeds(&bump),
    );
    Ok(())
}

/// Returns the account that receives the rent of a closed escrow or allowance. This is the payer, unless the payer has
/// become a program, which cannot receive lamports. In that case the vault receives the rent, and
/// [`crate::state::sweep`] pays it out later.
///
/// # Errors
/// `ConstraintMut` if that account was passed read-only.
pub fn rent_destination(payer: &UncheckedAccount, vault: &AccountView) -> Result<AccountView> {
    let payer = payer.account();
    let destination = if payer.executable() { *vault } else { *payer };
    require!(destination.is_writable(), ErrorCode::ConstraintMut);
    Ok(destination)
}
