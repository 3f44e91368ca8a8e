//! The organisation: its roles, its reserve and the limits of its operator.

use super::{next_sequence, seeds, DayWindow};
use crate::errors::VaultError;
use agent_vault_policy::UnixTime;
use anchor_lang::{address_eq, prelude::*};

/// An organisation. Its reserve is the associated token account of this address.
#[account]
pub struct Org {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// One while payments, escrow creation, new allowances and funding are stopped.
    pub paused: u8,
    /// Decimals of the mint.
    pub decimals: u8,
    /// Bump of this address.
    pub bump: u8,
    /// One if the operator needs the authority's signature to attach a policy, or a vault's first budget.
    pub authority_attaches: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 3],
    /// The creator's key. It is part of the address, so no other key can create an organisation that looks like this
    /// one.
    pub creator: Address,
    /// SHA-256 of the organisation's id.
    pub org_hash: [u8; 32],
    /// Genesis hash of the cluster, as given by the creator. It is part of the messages that prove an escrow's
    /// completion. The program cannot check it; clients compare it with their node's hash.
    pub genesis_hash: [u8; 32],
    /// The key that sets policies and roles, lifts manual freezes and withdraws from the reserve.
    pub authority: Address,
    /// The proposed next authority; all zero if there is no proposal.
    pub pending_authority: Address,
    /// The key that runs the vaults: creates and funds them, withdraws into the reserve, co-signs, registers
    /// recipients.
    pub operator: Address,
    /// The key that decides disputed escrows.
    pub arbiter: Address,
    /// The key that signs completion proofs on behalf of a third party.
    pub verifier: Address,
    /// The USDC mint of the vaults.
    pub mint: Address,
    /// The token program that owns the mint.
    pub token_program: Address,
    /// The token account of the reserve.
    pub reserve_tokens: Address,
    /// Number of changes to the organisation. Each event carries the number of its change.
    pub sequence: u64,
    /// Number of changes to roles, settings and the pause, withdrawals from the reserve and closed policies and
    /// budgets. The authority's signature for a change, a withdrawal or a new policy or budget is valid until this
    /// number changes; a pure pause names no number. The operator can change it only once, by a pause, until the
    /// authority lifts that pause.
    pub authority_sequence: u64,
    /// Maximum micro-USDC that the operator may move into vaults in any 24 hours; `u64::MAX` means no limit.
    pub operator_daily_limit: u64,
    /// Seconds until a recipient's registration by the operator can permit payments.
    pub attestation_delay: u64,
    /// The amounts moved into vaults in the last 24 hours.
    pub funded: DayWindow,
}

impl Org {
    /// Returns true if payments, escrow creation, new allowances and funding are stopped.
    #[inline(always)]
    pub fn is_paused(&self) -> bool {
        self.paused != 0
    }

    /// Returns true if `signer` is the operator.
    #[inline(always)]
    pub fn is_operator(&self, signer: &Address) -> bool {
        address_eq(&self.operator, signer)
    }

    /// Returns true if `signer` is the authority.
    #[inline(always)]
    pub fn is_authority(&self, signer: &Address) -> bool {
        address_eq(&self.authority, signer)
    }

    /// Checks that a policy may be attached: under `authority_attaches`, the authority must sign too.
    ///
    /// # Errors
    /// [`VaultError::AuthorityRequired`] if the authority must sign and does not.
    pub fn check_attaching(&self, authority: Option<&Signer>) -> Result<()> {
        require!(self.authority_attaches == 0 || authority.is_some(), VaultError::AuthorityRequired);
        Ok(())
    }

    /// Counts a change of the organisation and returns its number.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if the number exceeds 64 bits.
    pub fn next_sequence(&mut self) -> Result<u64> {
        next_sequence(&mut self.sequence)
    }

    /// Counts a change to roles, settings or the pause, a withdrawal from the reserve, or the closing of a policy or
    /// budget, and returns the organisation's new sequence.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a number exceeds 64 bits.
    pub fn next_authority_sequence(&mut self) -> Result<u64> {
        next_sequence(&mut self.authority_sequence)?;
        self.next_sequence()
    }

    /// Counts `amount` against the operator's daily limit. `now` is the cluster's time, because an organisation has no
    /// ledger. A time before the window's newest slot counts as part of that slot, so a clock that steps back makes no
    /// room.
    ///
    /// # Errors
    /// [`VaultError::OperatorLimitExceeded`] if 24 hours would hold more than the limit.
    pub fn charge_funding(&mut self, now: UnixTime, amount: u64) -> Result<()> {
        let limit = self.operator_daily_limit;
        let window = self.funded.as_policy_mut();
        let funded = window.total_at(now).map_err(|_| VaultError::Overflow)?;
        let total = funded.checked_add(amount).ok_or(VaultError::OperatorLimitExceeded)?;
        require!(total <= limit, VaultError::OperatorLimitExceeded);
        window.add(now, amount).map_err(|_| VaultError::Overflow)?;
        Ok(())
    }

    /// Returns the seeds that sign for this organisation's reserve.
    #[inline(always)]
    pub fn signer_seeds<'a>(&'a self, bump: &'a [u8; 1]) -> [&'a [u8]; 4] {
        [seeds::ORG, self.creator.as_ref(), &self.org_hash, bump]
    }
}
