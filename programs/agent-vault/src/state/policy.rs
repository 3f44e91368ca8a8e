//! A policy: the values of its rules, shared by all vaults attached to it.

use super::{count_in, count_out, set_value, value_if_set, MAX_OPEN_ESCROWS};
use crate::errors::VaultError;
use agent_vault_policy::{rules::blocked_categories, Rules, UnixTime, Usdc};
use alloc::vec::Vec;
use anchor_lang::{prelude::*, IdlType};

/// A policy. Spending is counted per vault, so attaching another policy resets nothing.
#[account]
pub struct Policy {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// One for a preset, which cannot be changed.
    pub immutable: u8,
    /// Bump of this address.
    pub bump: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 5],
    /// The organisation.
    pub org: Address,
    /// The allowlist in force; all zero if there is none. Without a list, no recipient counts as listed.
    pub allowlist: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// Identifies the policy within the organisation.
    pub key: [u8; 16],
    /// The organisation's sequence at the policy's creation or last change. No two policies of an organisation, and no
    /// two states of one policy, have the same version, even if a policy is closed and recreated under its key.
    pub version: u64,
    /// Version of the next allowlist, part of its address. It is the organisation's sequence when the policy was
    /// created or the previous version was used up.
    pub next_allowlist_version: u64,
    /// Number of vaults attached.
    pub wallet_count: u64,
    /// Maximum amount of one payment, in micro-USDC; see `flags`.
    pub max_per_tx: u64,
    /// Maximum spending in any 24 hours, in micro-USDC; see `flags`.
    pub max_per_day: u64,
    /// Maximum spending in a UTC calendar month, in micro-USDC; see `flags`.
    pub max_per_month: u64,
    /// Threshold for co-signing, in micro-USDC; see `flags`.
    pub require_co_sign: u64,
    /// Unix time of expiry; see `flags`.
    pub expiry: i64,
    /// Maximum payments per hour; see `flags`.
    pub velocity_cap: u32,
    /// Blocked categories: bit `c` is set if category code `c` is blocked.
    pub blocked_categories: u32,
    /// The rules that are set, one bit each; see [`flag`]. A rule with a clear bit is not set; a set rule with a value
    /// of zero is a limit of zero.
    pub flags: u32,
    /// Maximum number of open escrows per vault; see `flags`.
    pub max_open_escrows: u32,
    /// Maximum sum for a payee until it is known, in micro-USDC; see `flags`.
    pub new_recipient_cap: u64,
}

/// The values of a policy's rules as used in instructions and events. `None` means that the rule is not set.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct PolicyRules {
    /// Maximum amount of one payment, in micro-USDC.
    pub max_per_tx: Option<u64>,
    /// Maximum spending in any 24 hours, in micro-USDC.
    pub max_per_day: Option<u64>,
    /// Maximum spending in a UTC calendar month, in micro-USDC.
    pub max_per_month: Option<u64>,
    /// Maximum number of payments in any hour.
    pub velocity_cap: Option<u32>,
    /// Threshold in micro-USDC. Larger amounts need the operator's co-signature or approval.
    pub require_co_sign: Option<u64>,
    /// Unix time of expiry. Later payments are refused.
    pub expiry: Option<i64>,
    /// Blocked categories: bit `c` is set if category code `c` is blocked.
    pub blocked_categories: u32,
    /// True if only listed recipients are paid. Without a list, every recipient is refused.
    pub restricted: bool,
    /// Maximum number of open escrows per vault. `None` means [`super::MAX_OPEN_ESCROWS`], which no policy can exceed.
    pub max_open_escrows: Option<u32>,
    /// True if vaults may grant allowances.
    pub allow_allowances: bool,
    /// Maximum sum in micro-USDC for a payee until 24 hours after its first payment, unless the operator consents.
    pub new_recipient_cap: Option<u64>,
}

impl PolicyRules {
    /// A policy's values with no rule set.
    pub const OPEN: PolicyRules = PolicyRules {
        max_per_tx: None,
        max_per_day: None,
        max_per_month: None,
        velocity_cap: None,
        require_co_sign: None,
        expiry: None,
        blocked_categories: 0,
        restricted: false,
        max_open_escrows: None,
        allow_allowances: false,
        new_recipient_cap: None,
    };

    /// Appends the fields in Borsh encoding, in declaration order.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_option(out, self.max_per_tx, 8);
        write_option(out, self.max_per_day, 8);
        write_option(out, self.max_per_month, 8);
        write_option(out, self.velocity_cap.map(u64::from), 4);
        write_option(out, self.require_co_sign, 8);
        write_option(out, self.expiry.map(i64::cast_unsigned), 8);
        out.extend_from_slice(&self.blocked_categories.to_le_bytes());
        out.push(u8::from(self.restricted));
        write_option(out, self.max_open_escrows.map(u64::from), 4);
        out.push(u8::from(self.allow_allowances));
        write_option(out, self.new_recipient_cap, 8);
    }
}

/// Appends an optional integer of `size` bytes in Borsh encoding.
#[inline(never)]
pub fn write_option(out: &mut Vec<u8>, value: Option<u64>, size: usize) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        out.extend_from_slice(value.to_le_bytes().get(..size).unwrap_or_default());
    }
}

/// Bits of [`Policy::flags`].
pub mod flag {
    /// Set if `max_per_tx` is set.
    pub const MAX_PER_TX: u32 = 1;
    /// Set if `max_per_day` is set.
    pub const MAX_PER_DAY: u32 = 2;
    /// Set if `max_per_month` is set.
    pub const MAX_PER_MONTH: u32 = 4;
    /// Set if `velocity_cap` is set.
    pub const VELOCITY_CAP: u32 = 8;
    /// Set if `require_co_sign` is set.
    pub const REQUIRE_CO_SIGN: u32 = 16;
    /// Set if `expiry`, or a budget's `expires_at`, is set.
    pub const EXPIRY: u32 = 32;
    /// Set if only listed recipients are paid.
    pub const RESTRICTED: u32 = 64;
    /// Set if `max_open_escrows` is set.
    pub const MAX_OPEN_ESCROWS: u32 = 128;
    /// Set if vaults may grant allowances.
    pub const ALLOW_ALLOWANCES: u32 = 256;
    /// Set if a budget's `max_total` is set.
    pub const MAX_TOTAL: u32 = 512;
    /// Set if `new_recipient_cap` is set.
    pub const NEW_RECIPIENT_CAP: u32 = 1024;
}

impl Policy {
    /// Returns the rules as the policy crate's type, which judges payments.
    #[inline(always)]
    pub fn rules(&self) -> Rules {
        Rules {
            max_per_tx: self.value(flag::MAX_PER_TX, self.max_per_tx).map(Usdc),
            max_per_day: self.value(flag::MAX_PER_DAY, self.max_per_day).map(Usdc),
            max_per_month: self.value(flag::MAX_PER_MONTH, self.max_per_month).map(Usdc),
            velocity_cap: self.value(flag::VELOCITY_CAP, u64::from(self.velocity_cap)),
            require_co_sign: self.value(flag::REQUIRE_CO_SIGN, self.require_co_sign).map(Usdc),
            expiry: self.value(flag::EXPIRY, self.expiry).map(UnixTime),
            blocked_categories: self.blocked_categories,
            restricted: self.is_restricted(),
        }
    }

    /// Returns true if only listed recipients are paid.
    #[inline(always)]
    pub fn is_restricted(&self) -> bool {
        self.flags & flag::RESTRICTED != 0
    }

    /// Returns the maximum sum for a payee until it is known. It is kept apart from the other rules, so that payments
    /// without it cost no more.
    #[inline(always)]
    pub fn new_recipient_cap(&self) -> Option<Usdc> {
        self.value(flag::NEW_RECIPIENT_CAP, self.new_recipient_cap).map(Usdc)
    }

    /// Returns true if vaults may grant allowances.
    pub fn allows_allowances(&self) -> bool {
        self.flags & flag::ALLOW_ALLOWANCES != 0
    }

    /// Returns the rules in the form used in events.
    pub fn values(&self) -> PolicyRules {
        PolicyRules {
            max_per_tx: self.value(flag::MAX_PER_TX, self.max_per_tx),
            max_per_day: self.value(flag::MAX_PER_DAY, self.max_per_day),
            max_per_month: self.value(flag::MAX_PER_MONTH, self.max_per_month),
            velocity_cap: self.value(flag::VELOCITY_CAP, self.velocity_cap),
            require_co_sign: self.value(flag::REQUIRE_CO_SIGN, self.require_co_sign),
            expiry: self.value(flag::EXPIRY, self.expiry),
            blocked_categories: self.blocked_categories,
            restricted: self.is_restricted(),
            max_open_escrows: self.value(flag::MAX_OPEN_ESCROWS, self.max_open_escrows),
            allow_allowances: self.allows_allowances(),
            new_recipient_cap: self.new_recipient_cap().map(|Usdc(cap)| cap),
        }
    }

    /// Returns the maximum number of open escrows per vault.
    pub fn open_escrows_limit(&self) -> u32 {
        let limit = self.value(flag::MAX_OPEN_ESCROWS, self.max_open_escrows);
        limit.unwrap_or(MAX_OPEN_ESCROWS).min(MAX_OPEN_ESCROWS)
    }

    /// Replaces all rules by `rules`.
    ///
    /// # Errors
    /// [`VaultError::UnknownCategory`] if a bit is set that belongs to no category.
    pub fn set_rules(&mut self, rules: &PolicyRules) -> Result<()> {
        require!(rules.blocked_categories & !blocked_categories::KNOWN == 0, VaultError::UnknownCategory);
        self.flags = 0;
        self.max_per_tx = self.take(flag::MAX_PER_TX, rules.max_per_tx);
        self.max_per_day = self.take(flag::MAX_PER_DAY, rules.max_per_day);
        self.max_per_month = self.take(flag::MAX_PER_MONTH, rules.max_per_month);
        self.velocity_cap = self.take(flag::VELOCITY_CAP, rules.velocity_cap);
        self.require_co_sign = self.take(flag::REQUIRE_CO_SIGN, rules.require_co_sign);
        self.expiry = self.take(flag::EXPIRY, rules.expiry);
        self.blocked_categories = rules.blocked_categories;
        self.max_open_escrows = self.take(flag::MAX_OPEN_ESCROWS, rules.max_open_escrows);
        self.new_recipient_cap = self.take(flag::NEW_RECIPIENT_CAP, rules.new_recipient_cap);
        if rules.restricted {
            self.flags |= flag::RESTRICTED;
        }
        if rules.allow_allowances {
            self.flags |= flag::ALLOW_ALLOWANCES;
        }
        Ok(())
    }

    /// Adds one attached vault to the count.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if the count exceeds 64 bits.
    pub fn attach(&mut self) -> Result<()> {
        count_in(&mut self.wallet_count)
    }

    /// Removes one attached vault from the count.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if no vault was attached.
    pub fn detach(&mut self) -> Result<()> {
        count_out(&mut self.wallet_count)
    }

    #[inline(always)]
    fn value<T>(&self, flag: u32, value: T) -> Option<T> {
        value_if_set(self.flags, flag, value)
    }

    fn take<T: Default>(&mut self, flag: u32, value: Option<T>) -> T {
        set_value(&mut self.flags, flag, value)
    }
}

/// The policies that every organisation starts with. They cannot be changed.
pub mod presets {
    use super::PolicyRules;
    use anchor_lang::prelude::*;

    const USDC: u64 = 1_000_000;

    /// Key of the conservative preset.
    #[constant]
    pub const CONSERVATIVE_KEY: &[u8; 16] = b"pol_conservative";
    /// Key of the moderate preset.
    #[constant]
    pub const MODERATE_KEY: &[u8; 16] = b"pol_moderate\0\0\0\0";
    /// Key of the permissive preset.
    #[constant]
    pub const PERMISSIVE_KEY: &[u8; 16] = b"pol_permissive\0\0";
    /// Key of the preset that allows no payments.
    #[constant]
    pub const LOCKED_KEY: &[u8; 16] = b"pol_locked\0\0\0\0\0\0";

    const fn limits(per_tx: u64, per_day: u64, per_month: u64, velocity: u32, escrows: u32) -> PolicyRules {
        PolicyRules {
            max_per_tx: Some(per_tx.saturating_mul(USDC)),
            max_per_day: Some(per_day.saturating_mul(USDC)),
            max_per_month: Some(per_month.saturating_mul(USDC)),
            velocity_cap: Some(velocity),
            max_open_escrows: Some(escrows),
            ..PolicyRules::OPEN
        }
    }

    /// Limits of 10, 50 and 500 USDC per payment, day and month; 10 payments an hour; 8 open escrows.
    pub const CONSERVATIVE: PolicyRules = limits(10, 50, 500, 10, 8);
    /// Limits of 100, 500 and 5,000 USDC per payment, day and month; 60 payments an hour; 32 open escrows.
    pub const MODERATE: PolicyRules = limits(100, 500, 5_000, 60, 32);
    /// Limits of 1,000, 10,000 and 100,000 USDC per payment, day and month; 600 payments an hour; 64 open escrows.
    pub const PERMISSIVE: PolicyRules = limits(1_000, 10_000, 100_000, 600, 64);
    /// Allows no payment and no escrow at all.
    pub const LOCKED: PolicyRules =
        PolicyRules { max_per_tx: Some(0), max_open_escrows: Some(0), ..PolicyRules::OPEN };
}
