//! The organisation: its roles, its reserve and what bounds its operator.

use super::{next_sequence, seeds, DayWindow};
use crate::errors::VaultError;
use agent_vault_policy::UnixTime;
use anchor_lang::{address_eq, prelude::*};

/// An organisation. Its reserve is the associated token account of this address.
#[account]
pub struct Org {
    /// Who created it. Part of the address, so nobody else can make an organisation that looks like this one.
    pub creator: Address,
    /// SHA-256 of the organisation's id.
    pub org_hash: [u8; 32],
    /// Genesis hash of the cluster, as its creator gave it; part of the messages that prove an escrow's completion. The
    /// program cannot check it: clients compare it with their node's.
    pub genesis_hash: [u8; 32],
    /// Sets policies and roles, lifts manual freezes, empties the reserve.
    pub authority: Address,
    /// Proposed as the next authority; none (all zero) when there is no proposal.
    pub pending_authority: Address,
    /// Runs the vaults: creates and funds them, withdraws into the reserve, co-signs, registers recipients.
    pub operator: Address,
    /// Decides disputed escrows.
    pub arbiter: Address,
    /// Signs completion proofs on behalf of a third party.
    pub verifier: Address,
    /// The mint of the USDC that the vaults hold.
    pub mint: Address,
    /// The token program that owns the mint.
    pub token_program: Address,
    /// Token account of the reserve.
    pub reserve_tokens: Address,
    /// Number of changes to the organisation; each event carries its number.
    pub sequence: u64,
    /// Number of changes that only the authority makes, and of pauses: what the authority signs is good until the next. The
    /// operator moves it once, by a pause, until the authority ends that.
    pub authority_sequence: u64,
    /// Most micro-USDC that the operator moves into vaults in any 24 hours; `u64::MAX` is no limit.
    pub operator_daily_limit: u64,
    /// Seconds until a recipient that the operator registers counts as registered.
    pub attestation_delay: u64,
    /// What was moved into vaults in the last 24 hours.
    pub funded: DayWindow,
    /// One while payments, escrow creation, allowances and funding are stopped.
    pub paused: u8,
    /// Decimals of the mint.
    pub decimals: u8,
    /// Bump of this address.
    pub bump: u8,
    /// One when the operator attaches no policy without the authority's signature.
    pub authority_attaches: u8,
    /// Zero.
    pub reserved: [u8; 4],
}

impl Org {
    /// Payments, escrow creation, allowances and funding are stopped.
    #[inline(always)]
    pub fn is_paused(&self) -> bool {
        self.paused != 0
    }

    /// `signer` is the operator.
    #[inline(always)]
    pub fn is_operator(&self, signer: &Address) -> bool {
        address_eq(&self.operator, signer)
    }

    /// `signer` is the authority.
    #[inline(always)]
    pub fn is_authority(&self, signer: &Address) -> bool {
        address_eq(&self.authority, signer)
    }

    /// Checks that whoever attaches a policy may: under `authority_attaches` the authority signs, too.
    ///
    /// # Errors
    /// [`VaultError::AuthorityRequired`].
    pub fn check_attaching(&self, authority: Option<&Signer>) -> Result<()> {
        require!(self.authority_attaches == 0 || authority.is_some(), VaultError::AuthorityRequired);
        Ok(())
    }

    /// Counts a change of the organisation.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] at the end of 64 bits.
    pub fn next_sequence(&mut self) -> Result<u64> {
        next_sequence(&mut self.sequence)
    }

    /// Counts a change that only the authority makes, or a pause.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] at the end of 64 bits.
    pub fn next_authority_sequence(&mut self) -> Result<u64> {
        next_sequence(&mut self.authority_sequence)?;
        self.next_sequence()
    }

    /// Counts `amount` against the operator's daily limit. `now` is the cluster's time, as an organisation has no ledger: a
    /// time before the window's newest slot counts as in that slot, so a clock that steps back makes no room.
    ///
    /// # Errors
    /// [`VaultError::OperatorLimitExceeded`] when any 24 hours would hold more than the limit.
    pub fn charge_funding(&mut self, now: UnixTime, amount: u64) -> Result<()> {
        let limit = self.operator_daily_limit;
        let window = self.funded.as_policy_mut();
        let funded = window.total_at(now).map_err(|_| VaultError::Overflow)?;
        let total = funded.checked_add(amount).ok_or(VaultError::OperatorLimitExceeded)?;
        require!(total <= limit, VaultError::OperatorLimitExceeded);
        window.add(now, amount).map_err(|_| VaultError::Overflow)?;
        Ok(())
    }

    /// The seeds that sign for this organisation's reserve.
    #[inline(always)]
    pub fn signer_seeds<'a>(&'a self, bump: &'a [u8; 1]) -> [&'a [u8]; 4] {
        [seeds::ORG, self.creator.as_ref(), &self.org_hash, bump]
    }
}
