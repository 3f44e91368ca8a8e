//! One event for each change of state, sent as an inner instruction to the program itself. Unlike log lines, such
//! events can neither be truncated nor forged.
//!
//! Each event names the organisation, so that an indexer can ignore other organisations. Each also carries a sequence
//! number: the vault's for changes of a vault, the organisation's otherwise. A gap in the numbers means a lost event.
//! [`PolicyViolation`] is the exception: it has no number and is a log line, because a refused transaction leaves
//! nothing else behind.

use crate::{
    invoke::invoke,
    state::{self, BudgetLimits, PolicyRules},
    ID,
};
use alloc::vec::Vec;
use anchor_lang::{
    bytemuck::Pod,
    event::{EVENT_IX_TAG, EVENT_IX_TAG_LE},
    pinocchio::instruction::InstructionAccount,
    prelude::*,
    Discriminator,
};

/// Emits an event from an instruction with event accounts ([`with_event_accounts`]), given its context.
///
/// The bytes on the wire are those of the framework's `emit_cpi!`, which expands to some 3 kB at each use and copies
/// the event twice.
macro_rules! emit_event {
    ($ctx:ident, $event:expr) => {
        $crate::events::send(
            $ctx.accounts.event_authority.account(),
            $crate::events::Message::new($event).as_bytes(),
        )
    };
}
pub(crate) use emit_event;

/// Like [`emit_event`], for an event with optional fields, which writes its own body.
macro_rules! emit_borsh_event {
    ($ctx:ident, $event:expr) => {
        $crate::events::send($ctx.accounts.event_authority.account(), &$event.message())
    };
}
pub(crate) use emit_borsh_event;

/// A plain event in its wire form, built in place instead of being copied into a buffer.
#[repr(C)]
pub struct Message<E> {
    tag: [u8; 8],
    discriminator: [u8; 8],
    event: E,
}

impl<E: Pod + Discriminator> Message<E> {
    /// Prepends tag and discriminator to an event.
    #[inline(always)]
    pub fn new(event: E) -> Self {
        const { assert!(size_of::<Self>() == size_of::<E>() + 16) };
        Message { tag: EVENT_IX_TAG.to_le_bytes(), discriminator: state::discriminator_of::<E>(), event }
    }

    /// Returns the instruction data.
    #[inline(always)]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: there is no padding: the event has none, and it starts right after its 16 bytes, as asserted above.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Returns the first bytes of the message of an event that writes its own body.
fn message<E: Discriminator>() -> Vec<u8> {
    let mut message = Vec::with_capacity(CAPACITY);
    message.extend_from_slice(EVENT_IX_TAG_LE);
    message.extend_from_slice(&state::discriminator_of::<E>());
    message
}

/// Appends the two accounts needed for emitting an event to an instruction's accounts. Names and positions match the
/// framework's `#[event_cpi]`.
///
/// The framework also derives the event authority's address in each instruction. Here the runtime verifies the address:
/// its seeds can sign for no other address, and the program refuses events with a different signer.
macro_rules! with_event_accounts {
    ($(#[$attributes:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $(#[$attributes])*
        pub struct $name {
            $($fields)*
            /// The signer of the program's events.
            #[cfg_attr(feature = "idl-build", account(seeds = [b"__event_authority"], bump))]
            pub event_authority: UncheckedAccount,
            /// This program.
            pub program: UncheckedAccount,
        }
    };
}
pub(crate) use with_event_accounts;

/// Buffer size for events of variable length, enough for the largest, so that the buffer is allocated only once.
const CAPACITY: usize = 512;

/// Address and bump of the event authority, computed by the build script.
const AUTHORITY: ([u8; 32], u8) = include!(concat!(env!("OUT_DIR"), "/event_authority.rs"));

/// Invokes this program with an event's message. The program accepts events only from the event authority, and only
/// this program can sign for it.
#[inline(never)]
pub fn send(event_authority: &AccountView, message: &[u8]) {
    let metas = [InstructionAccount::readonly_signer(event_authority.address())];
    // SAFETY: this program writes nothing when it receives an event.
    unsafe { invoke(&ID, message, &metas, &[event_authority], &[b"__event_authority", &[AUTHORITY.1]]) }
}

/// Returns true if the instruction is an event signed by the event authority. Runs before the framework's dispatch,
/// which would accept such an event too and refuses other instructions with the event tag.
///
/// # Safety
/// See [`crate::entrypoint::entrypoint`].
#[cfg(any(target_os = "solana", test))]
#[inline(always)]
pub unsafe fn is_own(input: *const u8, data: *const u8) -> bool {
    const IS_SIGNER: usize = 8 + 1;
    const ADDRESS: usize = 8 + 8;
    let length = *data.sub(8).cast::<u64>();
    length >= 8
        && *data.cast::<u64>() == EVENT_IX_TAG
        && *input.cast::<u64>() > 0
        && *input.add(IS_SIGNER) != 0
        && anchor_lang::address_eq(&*input.add(ADDRESS).cast(), &Address::new_from_array(AUTHORITY.0))
}

/// An organisation was created. Its four presets follow as [`PolicyCreated`].
#[event(bytemuck)]
pub struct OrgInitialized {
    pub org: Address,
    pub creator: Address,
    pub authority: Address,
    pub operator: Address,
    pub arbiter: Address,
    pub verifier: Address,
    pub mint: Address,
    pub reserve_tokens: Address,
    pub sequence: u64,
    pub operator_daily_limit: u64,
    pub attestation_delay: u64,
    /// Genesis hash of the cluster, as given by the creator.
    pub genesis_hash: [u8; 32],
}

/// Roles, settings or the pause of an organisation changed, or a next authority was proposed. The fields contain
/// the values after the change.
#[event(bytemuck)]
pub struct OrgUpdated {
    pub org: Address,
    pub authority: Address,
    /// The proposed next authority; all zero if there is no proposal.
    pub pending_authority: Address,
    pub operator: Address,
    pub arbiter: Address,
    pub verifier: Address,
    pub signer: Address,
    pub sequence: u64,
    pub operator_daily_limit: u64,
    pub attestation_delay: u64,
    /// One while the organisation is paused.
    pub paused: u8,
    /// One if attaching a policy needs the authority's signature in addition to the operator's.
    pub authority_attaches: u8,
    pub reserved: [u8; 6],
}

/// The proposed authority accepted the authority's role.
#[event(bytemuck)]
pub struct AuthorityAccepted {
    pub org: Address,
    pub previous: Address,
    pub authority: Address,
    pub sequence: u64,
}

/// A policy was created.
#[event]
pub struct PolicyCreated {
    pub org: Address,
    pub policy: Address,
    /// Number of this event. It is the policy's first version too.
    pub sequence: u64,
    pub key: [u8; 16],
    /// True for a preset.
    pub immutable: bool,
    pub rules: PolicyRules,
}

impl PolicyCreated {
    /// Returns the message, with the fields in Borsh encoding in declaration order. Written by hand, because the
    /// framework's writer takes four times the space.
    pub fn message(&self) -> Vec<u8> {
        let mut message = message::<Self>();
        message.extend_from_slice(self.org.as_ref());
        message.extend_from_slice(self.policy.as_ref());
        message.extend_from_slice(&self.sequence.to_le_bytes());
        message.extend_from_slice(&self.key);
        message.push(u8::from(self.immutable));
        self.rules.write(&mut message);
        message
    }
}

/// A policy's rules or allowlist changed.
#[event]
pub struct PolicyUpdated {
    pub org: Address,
    pub policy: Address,
    /// Number of this event. The policy has the same number as its version after the change.
    pub sequence: u64,
    pub previous: PolicyRules,
    pub rules: PolicyRules,
    pub previous_allowlist: Address,
    /// The allowlist in force after the change; all zero if there is none.
    pub allowlist: Address,
}

impl PolicyUpdated {
    /// Returns the message, with the fields in Borsh encoding in declaration order.
    pub fn message(&self) -> Vec<u8> {
        let mut message = message::<Self>();
        message.extend_from_slice(self.org.as_ref());
        message.extend_from_slice(self.policy.as_ref());
        message.extend_from_slice(&self.sequence.to_le_bytes());
        self.previous.write(&mut message);
        self.rules.write(&mut message);
        message.extend_from_slice(self.previous_allowlist.as_ref());
        message.extend_from_slice(self.allowlist.as_ref());
        message
    }
}

/// A policy was closed.
#[event(bytemuck)]
pub struct PolicyClosed {
    pub org: Address,
    pub policy: Address,
    pub sequence: u64,
}

/// A chunk was written to an allowlist that is not in force yet.
#[event(bytemuck)]
pub struct AllowlistWritten {
    pub org: Address,
    pub policy: Address,
    pub allowlist: Address,
    pub sequence: u64,
    pub version: u64,
    /// Number of entries in the list after this chunk.
    pub count: u32,
    /// One if the list is complete.
    pub sealed: u8,
    pub reserved: [u8; 3],
}

/// An allowlist that was not in force was discarded. Its version is never used again.
#[event(bytemuck)]
pub struct AllowlistClosed {
    pub org: Address,
    pub policy: Address,
    pub allowlist: Address,
    pub sequence: u64,
    pub version: u64,
}

/// A budget was created.
#[event]
pub struct BudgetCreated {
    pub org: Address,
    pub budget: Address,
    /// Number of this event. The budget's `version` and `created_version` are set to the same number.
    pub sequence: u64,
    pub key: [u8; 16],
    /// The parent of this budget; all zero if it has no parent.
    pub parent: Address,
    pub limits: BudgetLimits,
}

impl BudgetCreated {
    /// Returns the message, with the fields in Borsh encoding in declaration order.
    pub fn message(&self) -> Vec<u8> {
        let mut message = message::<Self>();
        message.extend_from_slice(self.org.as_ref());
        message.extend_from_slice(self.budget.as_ref());
        message.extend_from_slice(&self.sequence.to_le_bytes());
        message.extend_from_slice(&self.key);
        message.extend_from_slice(self.parent.as_ref());
        self.limits.write(&mut message);
        message
    }
}

/// A budget's limits changed.
#[event]
pub struct BudgetUpdated {
    pub org: Address,
    pub budget: Address,
    /// Number of this event. The budget has the same number as its version after the change.
    pub sequence: u64,
    pub limits: BudgetLimits,
}

impl BudgetUpdated {
    /// Returns the message, with the fields in Borsh encoding in declaration order.
    pub fn message(&self) -> Vec<u8> {
        let mut message = message::<Self>();
        message.extend_from_slice(self.org.as_ref());
        message.extend_from_slice(self.budget.as_ref());
        message.extend_from_slice(&self.sequence.to_le_bytes());
        self.limits.write(&mut message);
        message
    }
}

/// A budget was closed.
#[event(bytemuck)]
pub struct BudgetClosed {
    pub org: Address,
    pub budget: Address,
    pub sequence: u64,
}

/// A budget was frozen. Neither its vaults nor the vaults of its child budgets can pay.
#[event(bytemuck)]
pub struct BudgetFrozen {
    pub org: Address,
    pub budget: Address,
    pub signer: Address,
    /// Number of this event. The budget's `frozen_sequence` is set to the same number.
    pub sequence: u64,
}

/// A budget was unfrozen.
#[event(bytemuck)]
pub struct BudgetUnfrozen {
    pub org: Address,
    pub budget: Address,
    pub signer: Address,
    /// Number of this event. The budget's `frozen_sequence` is set to the same number.
    pub sequence: u64,
}

/// A vault was attached to a budget, moved to a different one, or detached.
#[event(bytemuck)]
pub struct WalletBudgetSet {
    pub org: Address,
    pub vault: Address,
    pub sequence: u64,
    /// The budget after the change; all zero if the vault has none.
    pub budget: Address,
    /// The budget before the change; all zero if the vault had none.
    pub previous: Address,
    pub signer: Address,
}

/// A vault was created.
#[event(bytemuck)]
pub struct WalletCreated {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    pub vault_tokens: Address,
    pub sequence: u64,
    pub agent_hash: [u8; 32],
    /// The session authority; all zero if only the operator signs.
    pub session_authority: Address,
    pub session_expires_at: i64,
}

/// A vault's policy or session authority changed. The fields contain the values after the change.
#[event(bytemuck)]
pub struct WalletUpdated {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    pub sequence: u64,
    /// The session authority; all zero if only the operator signs.
    pub session_authority: Address,
    pub session_expires_at: i64,
}

/// A vault was frozen.
#[event(bytemuck)]
pub struct WalletFrozen {
    pub org: Address,
    pub vault: Address,
    pub signer: Address,
    pub sequence: u64,
    /// 1: frozen manually; 2: frozen because the policy expired.
    pub reason: u8,
    pub reserved: [u8; 7],
}

/// A vault was unfrozen.
#[event(bytemuck)]
pub struct WalletUnfrozen {
    pub org: Address,
    pub vault: Address,
    pub signer: Address,
    pub sequence: u64,
    /// The reason for the freeze that was lifted, with the codes of [`WalletFrozen`].
    pub reason: u8,
    pub reserved: [u8; 7],
}

/// A vault was archived. It is detached from its policy and its budget.
#[event(bytemuck)]
pub struct WalletClosed {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    pub sequence: u64,
}

/// A vault was funded from the reserve.
#[event(bytemuck)]
pub struct WalletFunded {
    pub org: Address,
    pub vault: Address,
    pub sequence: u64,
    pub org_sequence: u64,
    pub amount: u64,
    /// The vault's balance after the transfer.
    pub vault_balance: u64,
    /// The reserve's balance after the transfer.
    pub reserve_balance: u64,
    pub reference: [u8; 16],
}

/// A vault returned money to the reserve.
#[event(bytemuck)]
pub struct WalletWithdrawn {
    pub org: Address,
    pub vault: Address,
    pub sequence: u64,
    pub amount: u64,
    /// The vault's balance after the transfer.
    pub vault_balance: u64,
    /// The reserve's balance after the transfer.
    pub reserve_balance: u64,
    pub reference: [u8; 16],
}

/// The authority withdrew money from the reserve.
#[event(bytemuck)]
pub struct ReserveWithdrawn {
    pub org: Address,
    /// The token account that received the money.
    pub destination: Address,
    pub sequence: u64,
    pub amount: u64,
    /// The reserve's balance after the transfer.
    pub reserve_balance: u64,
    pub reference: [u8; 16],
}

/// A recipient was registered, or its registration changed.
#[event(bytemuck)]
pub struct RecipientRegistered {
    pub org: Address,
    pub address: Address,
    pub signer: Address,
    /// SHA-256 of the SHA-256 of the lower-case domain; see `has_domain`.
    pub domain_hash: [u8; 32],
    pub sequence: u64,
    /// Unix time of effect. Before it, the attestation can only restrict payments.
    pub effective_at: i64,
    pub category: u8,
    /// One if `domain_hash` is set.
    pub has_domain: u8,
    pub reserved: [u8; 6],
}

/// The operator declared a payee unknown.
#[event(bytemuck)]
pub struct PayeeForgotten {
    pub org: Address,
    pub vault: Address,
    pub address: Address,
    pub signer: Address,
    pub sequence: u64,
}

/// The operator approved a payment, an escrow or an allowance in advance.
#[event(bytemuck)]
pub struct PaymentApproved {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    pub approval: Address,
    pub recipient: Address,
    /// Payer of the approval's rent, refunded on closing.
    pub payer: Address,
    /// Hash of an escrow's terms; all zero for a payment or an allowance.
    pub terms: [u8; 32],
    pub sequence: u64,
    pub amount: u64,
    pub policy_version: u64,
    pub expires_at: i64,
    pub reference: [u8; 16],
    /// 0: a payment; 1: an escrow; 2: an allowance.
    pub kind: u8,
    pub reserved: [u8; 7],
}

/// An approval was withdrawn, or closed after its expiry. A used approval is named in the event of its payment, escrow
/// or allowance instead.
#[event(bytemuck)]
pub struct ApprovalClosed {
    pub org: Address,
    pub vault: Address,
    pub approval: Address,
    pub sequence: u64,
}

/// A vault made a payment.
#[event(bytemuck)]
pub struct PaymentExecuted {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    /// The owner of the paid token account.
    pub recipient: Address,
    /// The paid token account.
    pub destination: Address,
    pub signer: Address,
    /// The approval used; all zero if none.
    pub approval: Address,
    pub sequence: u64,
    pub amount: u64,
    /// The vault's balance after the payment.
    pub balance: u64,
    /// The time used to judge the rules.
    pub timestamp: i64,
    pub reference: [u8; 16],
    /// One if the session authority signed, and the operator co-signed or had approved.
    pub co_signed: u8,
    /// One if the session authority signed, zero if the operator did.
    pub by_session: u8,
    /// Bit 0: the vault's first payment to its payee; bit 1: the payee has become known. Zero without
    /// `new_recipient_cap`.
    pub payee: u8,
    pub reserved: [u8; 5],
}

/// A vault locked money for a task.
#[event(bytemuck)]
pub struct EscrowCreated {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    pub escrow: Address,
    pub receiver: Address,
    pub signer: Address,
    /// The approval used; all zero if none.
    pub approval: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    pub task_hash: [u8; 32],
    /// Commitment to the output; see `has_output_commitment`.
    pub output_commitment: [u8; 32],
    pub reference: [u8; 16],
    pub sequence: u64,
    pub counter: u64,
    pub amount: u64,
    /// The vault's balance after the transfer.
    pub balance: u64,
    /// The time used to judge the rules.
    pub timestamp: i64,
    /// Deadline as Unix time. From then on, the escrow can be refunded but no longer completed. A dispute stops the
    /// clock: its withdrawal moves the deadline by the time that the dispute lasted.
    pub deadline: i64,
    /// Bit set of accepted kinds of proof.
    pub proof_kinds: u8,
    /// One if `output_commitment` is set.
    pub has_output_commitment: u8,
    /// One if the receiver is a vault.
    pub receiver_is_vault: u8,
    /// One if the session authority signed, and the operator co-signed or had approved.
    pub co_signed: u8,
    /// One if the session authority signed, zero if the operator did.
    pub by_session: u8,
    /// Bit 0: the vault's first payment to its payee; bit 1: the payee has become known. Zero without
    /// `new_recipient_cap`.
    pub payee: u8,
    pub reserved: [u8; 2],
}

/// A party disputed an escrow.
#[event(bytemuck)]
pub struct EscrowDisputed {
    pub org: Address,
    pub vault: Address,
    pub escrow: Address,
    pub receiver: Address,
    pub signer: Address,
    /// SHA-256 of the reason.
    pub reason_hash: [u8; 32],
    /// Hash of the evidence, as given by the party.
    pub evidence_hash: [u8; 32],
    pub sequence: u64,
    pub timestamp: i64,
}

/// The dispute of an escrow was withdrawn.
#[event(bytemuck)]
pub struct DisputeWithdrawn {
    pub org: Address,
    pub vault: Address,
    pub escrow: Address,
    pub receiver: Address,
    pub signer: Address,
    pub sequence: u64,
    pub timestamp: i64,
    /// The new deadline, as Unix time.
    pub deadline: i64,
}

/// An escrow was settled: `released + refunded` equals its amount. A share that could not be paid is collected later.
#[event(bytemuck)]
pub struct EscrowSettled {
    pub org: Address,
    pub vault: Address,
    pub escrow: Address,
    pub receiver: Address,
    /// Hash of the output after a completion; zero otherwise.
    pub output_hash: [u8; 32],
    /// The escrow's reference, as in [`EscrowCreated`].
    pub reference: [u8; 16],
    pub sequence: u64,
    pub amount: u64,
    pub released: u64,
    pub refunded: u64,
    /// The amount that third parties had sent to the escrow and that was paid out now.
    pub surplus: u64,
    /// The vault's balance after the settlement.
    pub vault_balance: u64,
    /// The receiver's balance after the settlement; zero if the receiver was not paid.
    pub receiver_balance: u64,
    pub timestamp: i64,
    /// The outcome: 1 completed, 2 timed out, 3 released, 4 refunded or 5 split by the arbiter, 6 undecided dispute.
    pub outcome: u8,
    /// The kind of proof of a completion.
    pub proof_kind: u8,
    /// One if the receiver is a vault.
    pub receiver_is_vault: u8,
    /// One if the receiver's share stayed in the escrow; see [`EscrowCollected`].
    pub receiver_owed: u8,
    /// One if the vault's share stayed in the escrow.
    pub vault_owed: u8,
    /// One if the receiver got the surplus, because the vault could not be paid; zero if the vault got it.
    pub surplus_to_receiver: u8,
    pub reserved: [u8; 2],
}

/// One or both of the shares that had stayed in an escrow after a split were paid out.
#[event(bytemuck)]
pub struct EscrowCollected {
    pub org: Address,
    pub vault: Address,
    pub escrow: Address,
    pub receiver: Address,
    pub reference: [u8; 16],
    pub sequence: u64,
    /// The receiver's share; zero if it was not paid now.
    pub released: u64,
    /// The vault's share; zero if it was not paid now.
    pub refunded: u64,
    /// The amount that third parties had sent to the escrow and that was paid out now.
    pub surplus: u64,
    /// The vault's balance after the payment.
    pub vault_balance: u64,
    /// The receiver's balance after the payment; zero if the receiver was not paid.
    pub receiver_balance: u64,
    pub timestamp: i64,
    /// One if the receiver is a vault.
    pub receiver_is_vault: u8,
    /// One if a share is still to be collected.
    pub remains: u8,
    /// One if the receiver got the surplus, because the vault could not be paid; zero if the vault got it.
    pub surplus_to_receiver: u8,
    pub reserved: [u8; 5],
}

/// A vault set money aside for a delegate to pay out.
#[event(bytemuck)]
pub struct AllowanceGranted {
    pub org: Address,
    pub vault: Address,
    pub policy: Address,
    pub allowance: Address,
    /// The owner of `destination`.
    pub recipient: Address,
    /// The token account to be paid.
    pub destination: Address,
    pub delegate: Address,
    /// The allowance's token account.
    pub tokens: Address,
    pub signer: Address,
    /// The approval used; all zero if none.
    pub approval: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// The vault's budget, which holds the amount too, as does its parent; all zero if none.
    pub budget: Address,
    pub reference: [u8; 16],
    pub sequence: u64,
    pub counter: u64,
    pub amount: u64,
    /// The vault's balance after the transfer.
    pub balance: u64,
    /// The time used to judge the rules.
    pub timestamp: i64,
    /// Unix time of expiry. From then on, anyone may settle the allowance.
    pub expires_at: i64,
    pub policy_version: u64,
    /// One if the session authority signed and the operator had approved.
    pub co_signed: u8,
    /// One if the session authority signed, zero if only the operator did.
    pub by_session: u8,
    /// Bit 0: the vault's first payment to its payee; bit 1: the payee has become known. Zero without
    /// `new_recipient_cap`.
    pub payee: u8,
    pub reserved: [u8; 5],
}

/// An allowance was settled. `amount` is no longer held, and `spent` counts as spending from `timestamp` on.
#[event(bytemuck)]
pub struct AllowanceSettled {
    pub org: Address,
    pub vault: Address,
    pub allowance: Address,
    /// The owner of `destination` at the time of the grant.
    pub recipient: Address,
    /// The token account that was to be paid.
    pub destination: Address,
    pub delegate: Address,
    /// The key that signed the settlement; all zero if there was no signer.
    pub signer: Address,
    /// The allowance's reference, as in [`AllowanceGranted`].
    pub reference: [u8; 16],
    pub sequence: u64,
    pub amount: u64,
    /// The amount transferred or burnt by the delegate, as counted by the token program; see `delegate_missing`.
    pub spent: u64,
    /// The amount swept into the vault, including deposits of third parties.
    pub swept: u64,
    /// The vault's balance after the settlement.
    pub vault_balance: u64,
    pub timestamp: i64,
    /// One if the token account no longer had the granted delegate. The whole amount then counts as spent. Either it
    /// was spent, or the delegate burnt it or revoked its own approval.
    pub delegate_missing: u8,
    pub reserved: [u8; 7],
}

/// An account was brought to the current layout.
#[event(bytemuck)]
pub struct AccountMigrated {
    pub org: Address,
    /// The account, which may be the organisation's own.
    pub account: Address,
    /// The organisation's sequence, even for an account of a vault.
    pub sequence: u64,
    /// Version of the previous layout.
    pub previous: u64,
    /// Version of the layout now.
    pub layout: u64,
}

/// A rule refused a payment, an escrow or an allowance. The refused instruction logs this event; for the units see
/// `agent_vault_policy::Violation`.
#[event(bytemuck)]
pub struct PolicyViolation {
    pub org: Address,
    pub vault: Address,
    pub recipient: Address,
    /// The budget that sets the rule (the vault's budget or its parent); all zero if no budget sets it.
    pub budget: Address,
    pub limit: u64,
    pub attempted: u64,
    /// Code of the rule.
    pub rule: u8,
    pub reserved: [u8; 7],
}

#[cfg(test)]
mod tests {
    use super::*;
    use anchor_lang::Event;

    /// Sets every second rule, so that each kind of field is written both with a value and without one.
    fn rules(odd: bool) -> PolicyRules {
        let some = |number: u64| (odd == (number % 2 == 1)).then_some(number);
        PolicyRules {
            max_per_tx: some(1),
            max_per_day: some(2),
            max_per_month: some(3),
            velocity_cap: some(4).map(|number| u32::try_from(number).unwrap()),
            require_co_sign: some(5),
            expiry: some(6).map(|number| i64::try_from(number).unwrap()),
            blocked_categories: 7,
            restricted: odd,
            max_open_escrows: some(8).map(|number| u32::try_from(number).unwrap()),
            allow_allowances: odd,
            new_recipient_cap: odd.then_some(u64::MAX - 8),
        }
    }

    #[test]
    fn bodies_written_by_hand_are_those_of_the_framework() {
        for odd in [false, true] {
            let created = PolicyCreated {
                org: Address::new_from_array([1; 32]),
                policy: Address::new_from_array([2; 32]),
                sequence: 3,
                key: [4; 16],
                immutable: odd,
                rules: rules(odd),
            };
            assert_eq!(created.data()[8..], created.message()[16..]);
            let updated = PolicyUpdated {
                org: Address::new_from_array([1; 32]),
                policy: Address::new_from_array([2; 32]),
                sequence: 3,
                previous: rules(!odd),
                rules: rules(odd),
                previous_allowlist: Address::new_from_array([5; 32]),
                allowlist: Address::new_from_array([6; 32]),
            };
            assert_eq!(updated.data()[8..], updated.message()[16..]);
            assert!(updated.message().len() <= CAPACITY);
            let limits = BudgetLimits {
                max_per_day: rules(odd).max_per_day,
                max_per_month: rules(!odd).max_per_day,
                velocity_cap: rules(odd).velocity_cap,
                max_total: rules(!odd).max_per_tx,
                expires_at: rules(odd).expiry,
            };
            let created = BudgetCreated {
                org: Address::new_from_array([1; 32]),
                budget: Address::new_from_array([2; 32]),
                sequence: 3,
                key: [4; 16],
                parent: Address::new_from_array([5; 32]),
                limits,
            };
            assert_eq!(created.data()[8..], created.message()[16..]);
            let BudgetCreated { org, budget, sequence, .. } = created;
            let updated = BudgetUpdated { org, budget, sequence, limits };
            assert_eq!(updated.data()[8..], updated.message()[16..]);
        }
    }

    #[test]
    fn the_event_authority_is_signed_for_with_the_canonical_bump() {
        let (address, bump) = Address::find_program_address(&[b"__event_authority"], &ID);
        assert_eq!((address.to_bytes(), bump), AUTHORITY);
    }
}
