//! Freezes or unfreezes a vault.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletFrozen, WalletUnfrozen},
    instructions::clock,
    state::{frozen, same_address, Org, Outlined, Policy, Vault},
};
use agent_vault_policy::rules::expiry;
use anchor_lang::{prelude::*, IdlType};

/// The action on a vault.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub enum FreezeAction {
    /// Freeze the vault manually. Signed by the operator or the authority.
    Freeze,
    /// Unfreeze the vault. Signed by the authority, or by the operator if the vault was frozen because its policy had
    /// expired. A vault with a policy that is still expired stays frozen. The call must name the sequence of the
    /// freeze, so that an unfreeze signed earlier but never sent cannot lift a later freeze. Other changes of the vault
    /// do not change that number, so they cannot delay an unfreeze.
    Unfreeze,
    /// Freeze the vault because its policy has expired. Anyone may do so, unless the vault is already frozen.
    Expire,
}

with_event_accounts! {
    /// Accounts of `freeze_wallet`.
    #[derive(Accounts)]
    pub struct FreezeWallet {
        /// The signer required by the [`FreezeAction`].
        pub signer: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The attached policy. `Freeze` does not need it, so changes of policy cannot delay a freeze.
        #[account(constraint = same_address(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
        pub policy: Option<Outlined<Account<Policy>>>,
    }
}

/// See [`crate::agent_vault::freeze_wallet`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the action needs a different signer; [`VaultError::AlreadyFrozen`] if the vault is
/// already frozen, except that `Freeze` may replace a freeze for an expired policy; [`VaultError::NotFrozen`] if there
/// is nothing to unfreeze; [`VaultError::PolicyNotExpired`] for `Expire` before the policy's expiry;
/// [`VaultError::PolicyExpired`] for `Unfreeze` after it; [`VaultError::SequenceMismatch`] if `Unfreeze` does not name
/// the sequence of the freeze; [`VaultError::PolicyRequired`] if an action other than `Freeze` lacks the policy.
pub fn handler(
    ctx: &mut Context<FreezeWallet>,
    action: FreezeAction,
    expected_sequence: Option<u64>,
) -> Result<()> {
    let FreezeWallet { signer, org, vault, policy, .. } = &mut ctx.accounts;
    let expired = match policy {
        Some(policy) => expiry::has_passed(&policy.rules(), vault.ledger.as_policy().time(clock()?)),
        None => {
            require!(matches!(action, FreezeAction::Freeze), VaultError::PolicyRequired);
            false
        }
    };
    let signer = signer.address();
    let (operator, authority) = (org.is_operator(signer), org.is_authority(signer));
    let before = vault.frozen;
    vault.frozen = match action {
        FreezeAction::Freeze => {
            require!(operator || authority, VaultError::Unauthorized);
            require!(before != frozen::MANUAL, VaultError::AlreadyFrozen);
            frozen::MANUAL
        }
        FreezeAction::Expire => {
            require!(before == frozen::NO, VaultError::AlreadyFrozen);
            require!(expired, VaultError::PolicyNotExpired);
            frozen::EXPIRY
        }
        FreezeAction::Unfreeze => {
            require!(before != frozen::NO, VaultError::NotFrozen);
            require!(authority || (operator && before == frozen::EXPIRY), VaultError::Unauthorized);
            require!(!expired, VaultError::PolicyExpired);
            require!(expected_sequence == Some(vault.frozen_sequence), VaultError::SequenceMismatch);
            frozen::NO
        }
    };
    let sequence = vault.next_sequence()?;
    let (org, address, signer, reserved) = (vault.org, *vault.address(), *signer, [0; 7]);
    if vault.frozen == frozen::NO {
        let event = WalletUnfrozen { org, vault: address, signer, sequence, reason: before, reserved };
        emit_event!(ctx, event);
    } else {
        vault.frozen_sequence = sequence;
        let event = WalletFrozen { org, vault: address, signer, sequence, reason: vault.frozen, reserved };
        emit_event!(ctx, event);
    }
    Ok(())
}
