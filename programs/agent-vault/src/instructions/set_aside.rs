//! Money that is set aside in a token account of its own: the same for an escrow and for an allowance.

use crate::{
    state::{create_seeded, Org, Outlined, Seeded, Vault},
    token::{self, Transfer},
};
use anchor_lang::prelude::*;

/// Money of a vault that is to be set aside.
pub struct SetAside<'a> {
    /// Pays the rent.
    pub payer: &'a Signer,
    /// The escrow or the allowance, from whose address that of the token account is derived.
    pub holder: &'a AccountView,
    /// Sign for it.
    pub holder_seeds: &'a [&'a [u8]; 4],
    /// The seed of the token account.
    pub seed: &'a [u8],
    /// The token account to be.
    pub tokens: &'a UncheckedAccount,
    /// Its owner.
    pub owner: &'a Address,
    /// The organisation.
    pub org: &'a Org,
    /// The organisation's mint.
    pub mint: &'a UncheckedAccount,
    /// The vault that pays.
    pub vault: &'a Outlined<Account<Vault>>,
    /// The vault's token account.
    pub vault_tokens: &'a UncheckedAccount,
    /// Micro-USDC.
    pub amount: u64,
}

/// Makes the token account and moves the money into it.
///
/// # Errors
/// Those of [`create_seeded`].
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

/// Where the rent of what was set aside goes: to its payer, unless that became a program, which can take no lamports; the
/// vault takes them then, and they leave it with [`crate::state::sweep`].
///
/// # Errors
/// `ConstraintMut` when that account was passed read-only.
pub fn rent_destination(payer: &UncheckedAccount, vault: &AccountView) -> Result<AccountView> {
    let payer = payer.account();
    let destination = if payer.executable() { *vault } else { *payer };
    require!(destination.is_writable(), ErrorCode::ConstraintMut);
    Ok(destination)
}
