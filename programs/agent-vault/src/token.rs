//! Token accounts: reading them, creating them, and the program's only transfer.

use crate::{errors::VaultError, invoke::invoke};
use anchor_lang::{
    address_eq, find_and_verify_program_address,
    pinocchio::instruction::InstructionAccount,
    prelude::*,
    programs::{Token, Token2022},
    Id,
};
use anchor_spl::associated_token;

/// Layout of a token account, the same in SPL Token and Token-2022.
/// <https://docs.rs/spl-token-interface/latest/spl_token_interface/state/struct.Account.html>
mod layout {
    pub const MINT: usize = 0;
    pub const OWNER: usize = 32;
    pub const AMOUNT: usize = 64;
    pub const DELEGATE_TAG: usize = 72;
    pub const DELEGATE: usize = 76;
    pub const STATE: usize = 108;
    pub const DELEGATED_AMOUNT: usize = 121;
    pub const CLOSE_AUTHORITY_TAG: usize = 129;
    pub const LENGTH: usize = 165;
    /// Length of a multisig, which only its length reveals. Its bytes are addresses chosen by its creator, including
    /// the byte read as account type. No account with extensions has this length.
    pub const MULTISIG_LENGTH: usize = 355;
    /// Offset of the account type. In an account longer than `LENGTH` (Token-2022 with extensions), this byte
    /// distinguishes mints from token accounts.
    pub const ACCOUNT_TYPE: usize = 165;
    /// Offset of the extensions, which follow the account type and fill the rest of the account.
    pub const EXTENSIONS: usize = 166;
    pub const MINT_LENGTH: usize = 82;
    pub const MINT_DECIMALS: usize = 44;
    pub const MINT_INITIALIZED: usize = 45;
    pub const TYPE_MINT: u8 = 1;
    pub const TYPE_ACCOUNT: u8 = 2;
}

/// The fields of a token account that the program reads.
#[derive(Clone, Copy)]
pub struct TokenAccount {
    /// The wallet that owns the account.
    pub owner: Address,
    /// Balance in micro-USDC.
    pub amount: u64,
}

/// Reads a token account of `token_program`.
///
/// The mint is not compared here, because `TransferChecked` refuses accounts of different mints.
///
/// # Errors
/// [`VaultError::NotATokenAccount`] if the account is not a token account of `token_program`.
#[inline(never)]
pub fn read(account: &AccountView, token_program: &Address) -> Result<TokenAccount> {
    require!(account.owned_by(token_program), VaultError::NotATokenAccount);
    let data = account.try_borrow()?;
    let plain = data.len() == layout::LENGTH;
    require!(
        plain
            || (data.len() != layout::MULTISIG_LENGTH
                && data.get(layout::ACCOUNT_TYPE) == Some(&layout::TYPE_ACCOUNT)),
        VaultError::NotATokenAccount
    );
    let base = data.first_chunk::<{ layout::LENGTH }>().ok_or(VaultError::NotATokenAccount)?;
    Ok(TokenAccount {
        owner: Address::new_from_array(bytes_at(base, layout::OWNER)),
        amount: u64::from_le_bytes(bytes_at(base, layout::AMOUNT)),
    })
}

/// Returns `N` bytes at an offset. All offsets are constants within bounds; an offset out of bounds would give zeros
/// instead of a panic.
#[inline(always)]
fn bytes_at<const N: usize>(data: &[u8; layout::LENGTH], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    if let Some(source) = data.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        bytes = *source;
    }
    bytes
}

/// Returns true if a token account belongs to `owner` and can be paid. It must be initialized, not frozen, and must not
/// require a memo, because the program's transfers carry none.
///
/// # Errors
/// [`VaultError::NotATokenAccount`] if the account is not a token account of `token_program`. Also fails while the
/// account is borrowed for writing.
pub fn can_be_paid(account: &AccountView, token_program: &Address, owner: &Address) -> Result<bool> {
    const INITIALIZED: u8 = 1;
    let found = read(account, token_program)?;
    let data = account.try_borrow()?;
    let state = data.get(layout::STATE).copied();
    Ok(state == Some(INITIALIZED) && address_eq(&found.owner, owner) && !requires_memo(&data))
}

/// Returns true if the extension that refuses transfers without a memo is present and switched on. Bytes that this
/// function cannot read as extensions are unreadable for the token program too, and it then refuses the transfer.
fn requires_memo(data: &[u8]) -> bool {
    const MEMO_TRANSFER: u16 = 8;
    let mut rest = data.get(layout::EXTENSIONS..).unwrap_or_default();
    while let Some((kind, value, next)) = first_extension(rest) {
        if kind == MEMO_TRANSFER {
            return value != [0];
        }
        rest = next;
    }
    false
}

/// Returns type and value of the first extension (type and length of 16 bits each, then the value), and the bytes after
/// it. Returns `None` at the end and for bytes that are no extension. Each extension takes at least four bytes, so the
/// account's length limits their number.
fn first_extension(extensions: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    const UNINITIALIZED: u16 = 0;
    let (header, behind) = extensions.split_first_chunk::<4>()?;
    let kind = u16::from_le_bytes([header[0], header[1]]);
    let length = u16::from_le_bytes([header[2], header[3]]);
    let (value, next) = behind.split_at_checked(usize::from(length))?;
    (kind != UNINITIALIZED).then_some((kind, value, next))
}

/// Returns the owner of a token account of `mint`, after checking that the account can be paid: see [`can_be_paid`].
///
/// # Errors
/// [`VaultError::NotATokenAccount`] if the account is not a token account of `token_program`; [`VaultError::WrongMint`]
/// if it holds a different mint; [`VaultError::UnusableTokenAccount`] if it cannot be paid.
pub fn payable_owner(account: &AccountView, token_program: &Address, mint: &Address) -> Result<Address> {
    let owner = read(account, token_program)?.owner;
    let right = account.try_borrow()?.get(layout::MINT..layout::OWNER) == Some(mint.as_ref());
    require!(right, VaultError::WrongMint);
    require!(can_be_paid(account, token_program, &owner)?, VaultError::UnusableTokenAccount);
    Ok(owner)
}

/// Returns the amount that `delegate` may still transfer out of a token account created by the program, or `None` if
/// `delegate` is not its delegate.
///
/// # Errors
/// [`VaultError::NotATokenAccount`] if the account is not a token account of `token_program`.
pub fn delegated(account: &AccountView, token_program: &Address, delegate: &Address) -> Result<Option<u64>> {
    const SOME: [u8; 4] = [1, 0, 0, 0];
    require!(account.owned_by(token_program), VaultError::NotATokenAccount);
    let data = account.try_borrow()?;
    let base = data.first_chunk::<{ layout::LENGTH }>().ok_or(VaultError::NotATokenAccount)?;
    let is_set = bytes_at(base, layout::DELEGATE_TAG) == SOME
        && bytes_at(base, layout::DELEGATE) == delegate.to_bytes();
    Ok(is_set.then(|| u64::from_le_bytes(bytes_at(base, layout::DELEGATED_AMOUNT))))
}

/// Returns the balance of a token account at an address that the program has stored. The program created or checked the
/// account before it stored the address.
///
/// # Errors
/// [`VaultError::NotATokenAccount`] if the account is not a token account of `token_program`.
#[inline(always)]
pub fn balance(account: &AccountView, token_program: &Address) -> Result<u64> {
    require!(account.owned_by(token_program), VaultError::NotATokenAccount);
    let data = account.try_borrow()?;
    let amount =
        data.get(layout::AMOUNT..).and_then(|rest| rest.first_chunk()).ok_or(VaultError::NotATokenAccount)?;
    Ok(u64::from_le_bytes(*amount))
}

/// Accounts, amount and signer of a transfer.
pub struct Transfer<'a> {
    /// The organisation's token program.
    pub token_program: &'a Address,
    /// The paying token account.
    pub from: &'a AccountView,
    /// The mint.
    pub mint: &'a AccountView,
    /// The paid token account.
    pub to: &'a AccountView,
    /// Owner of `from`: a program-derived address.
    pub owner: &'a AccountView,
    /// The amount to transfer, in micro-USDC.
    pub amount: u64,
    /// Decimals of the mint.
    pub decimals: u8,
}

/// Moves tokens. Every movement of money in this program is this one call. A check that fails after it aborts the
/// transaction, so nothing moves.
///
/// The metas are fixed and the token program is the one in the Org, so a caller cannot substitute another program. If
/// the token program refuses, the transaction aborts.
#[inline(never)]
pub fn transfer(transfer: Transfer, seeds: &[&[u8]; 4]) {
    const TRANSFER_CHECKED: u8 = 12;
    let Transfer { token_program, from, mint, to, owner, amount, decimals } = transfer;
    let amount = amount.to_le_bytes();
    let data = [
        TRANSFER_CHECKED,
        amount[0],
        amount[1],
        amount[2],
        amount[3],
        amount[4],
        amount[5],
        amount[6],
        amount[7],
        decimals,
    ];
    let metas = [
        InstructionAccount::writable(from.address()),
        InstructionAccount::readonly(mint.address()),
        InstructionAccount::writable(to.address()),
        InstructionAccount::readonly_signer(owner.address()),
    ];
    // SAFETY: token accounts are read into values, never kept as references.
    unsafe { invoke(token_program, &data, &metas, &[from, mint, to, owner], seeds) }
}

/// Accounts, amount and signer of an approval of a delegate.
pub struct Approve<'a> {
    /// The organisation's token program.
    pub token_program: &'a Address,
    /// The token account that the delegate may transfer from.
    pub tokens: &'a AccountView,
    /// The mint.
    pub mint: &'a AccountView,
    /// The delegate, which may transfer with its own signature alone.
    pub delegate: &'a AccountView,
    /// Owner of `tokens`: a program-derived address.
    pub owner: &'a AccountView,
    /// The amount that the delegate may transfer, in micro-USDC.
    pub amount: u64,
    /// Decimals of the mint.
    pub decimals: u8,
}

/// Lets a delegate transfer tokens. Used only for token accounts created for this purpose: a vault's own account never
/// has a delegate.
pub fn approve(approve: &Approve, seeds: &[&[u8]; 4]) {
    const APPROVE_CHECKED: u8 = 13;
    let Approve { token_program, tokens, mint, delegate, owner, amount, decimals } = *approve;
    let mut data = [APPROVE_CHECKED; 10];
    data[1..9].copy_from_slice(&amount.to_le_bytes());
    data[9] = decimals;
    let metas = [
        InstructionAccount::writable(tokens.address()),
        InstructionAccount::readonly(mint.address()),
        InstructionAccount::readonly(delegate.address()),
        InstructionAccount::readonly_signer(owner.address()),
    ];
    // SAFETY: see `transfer`.
    unsafe { invoke(token_program, &data, &metas, &[tokens, mint, delegate, owner], seeds) }
}

/// Size in bytes of a token account without extensions. The mints that [`accepted_mint`] accepts require none.
pub const ACCOUNT_SPACE: usize = layout::LENGTH;

/// Initializes a newly created account as a token account of `owner`.
pub fn initialize<'a>(
    token_program: &'a Address,
    account: &'a AccountView,
    mint: &'a AccountView,
    owner: &Address,
) {
    const INITIALIZE_ACCOUNT_3: u8 = 18;
    let mut data = [INITIALIZE_ACCOUNT_3; 33];
    data[1..].copy_from_slice(owner.as_ref());
    let metas =
        [InstructionAccount::writable(account.address()), InstructionAccount::readonly(mint.address())];
    // SAFETY: see `transfer`.
    unsafe { invoke(token_program, &data, &metas, &[account, mint], &[]) }
}

/// Closes an empty token account. Its rent goes to `destination`.
pub fn close<'a>(
    token_program: &'a Address,
    account: &'a AccountView,
    destination: &'a AccountView,
    owner: &'a AccountView,
    seeds: &[&[u8]; 4],
) {
    const CLOSE_ACCOUNT: u8 = 9;
    let metas = [
        InstructionAccount::writable(account.address()),
        InstructionAccount::writable(destination.address()),
        InstructionAccount::readonly_signer(owner.address()),
    ];
    // SAFETY: see `transfer`; in the destination, only the lamports are written.
    unsafe { invoke(token_program, &[CLOSE_ACCOUNT], &metas, &[account, destination, owner], seeds) }
}

/// Returns the decimals of a mint that vaults may hold.
///
/// It must be a mint of SPL Token, or of Token-2022 without extensions or with purely descriptive ones. Extensions that
/// could take a fee, run a hook, freeze new accounts or move the vault's tokens are refused.
///
/// # Errors
/// [`VaultError::UnsupportedTokenProgram`] if the token program is neither of these; [`VaultError::UnsupportedMint`] if
/// the account is not such a mint.
pub fn accepted_mint(mint: &AccountView, token_program: &Address) -> Result<u8> {
    let token_2022 = address_eq(token_program, &Token2022::id());
    require!(token_2022 || address_eq(token_program, &Token::id()), VaultError::UnsupportedTokenProgram);
    require!(mint.owned_by(token_program), VaultError::UnsupportedMint);
    let data = mint.try_borrow()?;
    require!(data.get(layout::MINT_INITIALIZED) == Some(&1), VaultError::UnsupportedMint);
    if data.len() != layout::MINT_LENGTH {
        require!(
            token_2022 && data.get(layout::ACCOUNT_TYPE) == Some(&layout::TYPE_MINT),
            VaultError::UnsupportedMint
        );
        let extensions = data.get(layout::EXTENSIONS..).ok_or(VaultError::UnsupportedMint)?;
        require!(only_describing(extensions), VaultError::UnsupportedMint);
    }
    data.get(layout::MINT_DECIMALS).copied().ok_or(VaultError::UnsupportedMint.into())
}

/// Returns true if all extensions of a mint are harmless and only zeros follow them.
fn only_describing(extensions: &[u8]) -> bool {
    // MetadataPointer, TokenMetadata, GroupPointer, TokenGroup, GroupMemberPointer, TokenGroupMember
    const HARMLESS: core::ops::RangeInclusive<u16> = 18..=23;
    let mut rest = extensions;
    while let Some((kind, _, next)) = first_extension(rest) {
        if !HARMLESS.contains(&kind) {
            return false;
        }
        rest = next;
    }
    rest.iter().all(|byte| *byte == 0)
}

/// The accounts for creating an associated token account.
pub struct Association<'a> {
    /// Pays the rent.
    pub payer: &'a AccountView,
    /// The account to create.
    pub tokens: &'a AccountView,
    /// The owner of that account.
    pub owner: &'a AccountView,
    /// The mint.
    pub mint: &'a AccountView,
    /// The mint's program.
    pub token_program: &'a AccountView,
    /// The associated token program.
    pub associated_token_program: &'a Address,
    /// The system program.
    pub system_program: &'a AccountView,
}

/// Creates an associated token account unless it exists. Then checks the account in either case. Anyone may create one
/// first, so an existing account must not be an error, and its contents must not be trusted.
///
/// # Errors
/// [`VaultError::WrongTokenAccount`] for a different address; [`VaultError::UnusableTokenAccount`] if owner, mint or
/// state is wrong, or if the account has a delegate or a close authority.
pub fn associate(association: Association<'_>) -> Result<()> {
    const CREATE_IDEMPOTENT: u8 = 1;
    let Association { payer, tokens, owner, mint, token_program, associated_token_program, system_program } =
        association;
    let metas = [
        InstructionAccount::writable_signer(payer.address()),
        InstructionAccount::writable(tokens.address()),
        InstructionAccount::readonly(owner.address()),
        InstructionAccount::readonly(mint.address()),
        InstructionAccount::readonly(system_program.address()),
        InstructionAccount::readonly(token_program.address()),
    ];
    let accounts = [payer, tokens, owner, mint, system_program, token_program];
    // SAFETY: see `transfer`.
    unsafe { invoke(associated_token_program, &[CREATE_IDEMPOTENT], &metas, &accounts, &[]) }

    let seeds: [&[u8]; 3] =
        [owner.address().as_ref(), token_program.address().as_ref(), mint.address().as_ref()];
    find_and_verify_program_address(&seeds, &associated_token::ID, tokens.address())
        .map_err(|_| VaultError::WrongTokenAccount)?;
    let state = read(tokens, token_program.address())?;
    let data = tokens.try_borrow()?;
    let zero_tag = |at: usize| data.get(at..).and_then(|rest| rest.first_chunk::<4>()) == Some(&[0; 4]);
    const INITIALIZED: u8 = 1;
    let sound = address_eq(&state.owner, owner.address())
        && data.get(layout::MINT..layout::OWNER) == Some(mint.address().as_ref())
        && data.get(layout::STATE) == Some(&INITIALIZED)
        && zero_tag(layout::DELEGATE_TAG)
        && zero_tag(layout::CLOSE_AUTHORITY_TAG);
    require!(sound, VaultError::UnusableTokenAccount);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::only_describing;

    fn extension(kind: u16, length: u16) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[2..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    #[test]
    fn only_extensions_that_describe_are_accepted() {
        for kind in 1..=64 {
            assert_eq!(only_describing(&extension(kind, 8)), (18..=23).contains(&kind), "{kind}");
        }
    }

    #[test]
    fn a_harmful_extension_behind_a_harmless_one_is_seen() {
        let mut both = [0; 24];
        both[..12].copy_from_slice(&extension(18, 8));
        both[12..].copy_from_slice(&extension(1, 8));
        assert!(!only_describing(&both));
    }

    #[test]
    fn a_length_beyond_the_account_is_refused() {
        assert!(!only_describing(&extension(18, 9)));
    }

    #[test]
    fn nothing_hides_behind_the_end_marker() {
        let mut hidden = [0; 24];
        hidden[12..].copy_from_slice(&extension(1, 8));
        assert!(!only_describing(&hidden));
        assert!(only_describing(&[0; 24]));
        assert!(only_describing(&[]));
    }
}
