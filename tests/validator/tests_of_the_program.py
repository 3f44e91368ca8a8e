"""Lists the program's tests that run on the validator: those of these modules except the tests named here."""

CLOCK = "moves the clock"
EXACT = "relies on the start time of a VM to the second"
PLACED = "places an account or program that no transaction can create"
LARGE = "sends a transaction over the limit of 1,232 bytes"
UNSIGNED = "sends a transaction that nobody signs"
POOR = "gives an account less than its rent, which a validator refuses"
OTHERWISE = "gets another result from a newer runtime"
_ATTACK = "test_attack_is_refused_and_changes_nothing"

MODULES: dict[str, dict[str, str]] = {
    "test_adversaries": {
        f"{_ATTACK}[approve_payment - approval - the other organisation's]": EXACT,
        f"{_ATTACK}[approve_payment - approval - another address]": EXACT,
        f"{_ATTACK}[approve_payment - approval - non-canonical bump]": EXACT,
        f"{_ATTACK}[approve_payment - approval - the victim's]": EXACT,
        f"{_ATTACK}[approve_payment - event_authority - another address]": EXACT,
        f"{_ATTACK}[approve_payment - event_authority - another signs]": EXACT,
        f"{_ATTACK}[complete_escrow newcomer - associated_token_program - no program]": OTHERWISE,
        f"{_ATTACK}[resolve_dispute split - associated_token_program - no program]": OTHERWISE,
        # That runtime requires the program among the accounts of an instruction that makes it call itself.
        "test_harmless_change_is_accepted": OTHERWISE,
    },
    "test_allowances": {},
    "test_allowance_settlement": {},
    "test_allowlists": {},
    "test_approvals": {
        "test_approval_is_valid_until_it_expires": CLOCK,
        "test_anyone_can_close_an_expired_approval": CLOCK,
        "test_approval_is_made_at_the_vaults_time": CLOCK,
        "test_approval_lasts_at_most_a_day": EXACT,
    },
    "test_budgets": {
        "test_each_ledger_has_its_own_time": CLOCK,
        "test_preview_gives_the_budgets_verdicts_before_the_co_signature": CLOCK,
        "test_budget_adds_few_compute_units": CLOCK,
    },
    "test_budget_escrows": {
        "test_escrow_is_charged_to_the_budget_and_remembers_where": EXACT,
        "test_settlement_gives_back_what_was_not_released[timed out]": CLOCK,
        "test_settlement_needs_the_account_at_the_stored_address[timed out]": CLOCK,
        "test_credit_goes_to_the_budget_charged_whatever_the_vaults_is_now": CLOCK,
        "test_closed_budget_stops_no_settlement_and_gets_no_credit[timed out-False]": CLOCK,
        "test_closed_budget_stops_no_settlement_and_gets_no_credit[timed out-True]": CLOCK,
        "test_budget_given_lamports_after_its_end_stops_no_settlement": PLACED,
        "test_vault_and_budget_are_credited_at_their_own_places": CLOCK,
        "test_refund_after_the_window_credits_nothing": CLOCK,
        "test_collecting_needs_no_budget": PLACED,
    },
    "test_check_payment": {
        "test_payment_passes_at_the_previewed_time_under_velocity_cap": CLOCK,
        "test_payment_passes_at_the_previewed_time_under_max_per_day": CLOCK,
        "test_payment_passes_at_the_previewed_time_under_max_per_month": CLOCK,
        "test_payment_passes_when_the_last_of_its_rules_allows_it": CLOCK,
        "test_retry_time_can_be_the_policys_last_second": CLOCK,
        "test_preview_uses_the_ledgers_time_when_the_clock_steps_back": CLOCK,
        "test_verdict_of_each_rule_has_limit_attempted_and_headroom": EXACT,
        "test_payment_that_can_never_pass_has_no_retry_time[rules5]": EXACT,
        "test_payment_that_could_pass_only_after_expiry_has_no_retry_time": EXACT,
    },
    "test_escrow_budgets": {
        "test_refund_credits_the_slot_and_month_that_were_charged": CLOCK,
        "test_refund_does_not_credit_velocity": CLOCK,
        "test_refund_keeps_the_ledgers_time": CLOCK,
        "test_refund_credits_the_day_while_its_slot_is_in_the_window": CLOCK,
        "test_refund_within_the_window_credits_no_other_slot": CLOCK,
        "test_refund_after_idle_days_never_exceeds_the_budget": CLOCK,
        "test_refund_in_another_month_credits_nothing_to_it": CLOCK,
        "test_refund_later_in_the_month_credits_only_the_month": CLOCK,
        "test_nothing_is_credited_twice": CLOCK,
        "test_last_payments_slot_is_charged_when_the_clock_steps_back": CLOCK,
        "test_refund_takes_no_more_from_a_slot_than_it_holds": PLACED,
    },
    "test_escrow_creation": {
        "test_session_creates_until_it_expires": CLOCK,
        "test_vault_has_at_most_64_open_escrows": CLOCK,
        "test_lamports_sent_ahead_do_not_block_creation_and_go_to_the_payer": CLOCK,
        "test_creation_uses_the_ledgers_time_when_the_clock_steps_back": CLOCK,
        "test_each_rule_refuses_and_is_reported[rules0-PolicyExpired-violation0]": EXACT,
        "test_escrows_and_payments_count_together_up_to_the_limits": EXACT,
        "test_timeout_is_from_a_minute_to_thirty_days": EXACT,
    },
    "test_escrow_disputes": {
        "test_sessions_can_dispute_until_they_expire": CLOCK,
        "test_key_of_both_sides_acts_for_the_side_whose_session_is_valid": CLOCK,
        "test_dispute_without_an_arbiter_ends_in_a_refund": CLOCK,
        "test_late_decision_is_valid_until_somebody_refunds": CLOCK,
        "test_clock_that_steps_back_reopens_nothing": CLOCK,
        "test_withdrawn_dispute_gives_the_time_that_was_left": CLOCK,
    },
    "test_escrow_proofs": {
        "test_receivers_session_counts_until_it_expires": CLOCK,
        "test_requesters_session_submits_until_it_is_rotated_or_expires": CLOCK,
        "test_only_the_exact_message_is_proof": LARGE,
        "test_proof_is_used_once": LARGE,
        "test_receivers_rotated_session_no_longer_counts": LARGE,
    },
    "test_escrow_receivers": {
        "test_lookalike_of_the_associated_token_program_is_refused": PLACED,
        "test_receivers_closed_token_account_is_created_again": PLACED,
        "test_unpayable_receiver_does_not_lock_the_requesters_money": PLACED,
    },
    "test_escrow_settlement": {
        "test_rent_of_both_accounts_goes_back_to_whoever_paid_it[by_refund]": CLOCK,
        "test_rent_cannot_go_to_anyone_else[by_refund]": CLOCK,
        "test_donated_tokens_go_to_the_last_side_paid_and_credit_nothing[by_refund]": CLOCK,
        "test_escrow_settles_only_with_its_own_tokens_and_vault[by_refund]": CLOCK,
        "test_both_token_programs_work[by_refund-token_program0]": CLOCK,
        "test_both_token_programs_work[by_refund-token_program1]": CLOCK,
        "test_one_key_in_all_roles_can_settle": CLOCK,
        "test_neither_pause_nor_freeze_nor_policy_stops_a_settlement": EXACT,
        "test_payer_without_lamports_gets_the_rent": PLACED,
        "test_payer_that_belongs_to_a_program_gets_its_rent": PLACED,
        "test_rent_stays_in_the_vault_if_the_payer_is_a_program": PLACED,
        "test_archiving_a_vault_sweeps_what_is_above_its_rent": PLACED,
        "test_exhausted_sequence_is_an_error": PLACED,
    },
    "test_escrow_signatures": {
        "test_parts_of_another_instruction_do_not_count": LARGE,
        "test_signature_counts_only_directly_before_the_completion": LARGE,
        "test_lookalike_of_the_ed25519_program_does_not_count": PLACED,
        "test_forged_list_of_instructions_does_not_count": PLACED,
        "test_completion_as_the_first_instruction_has_no_proof": UNSIGNED,
    },
    "test_escrows": {
        "test_completion_pays_the_receiver": CLOCK,
        "test_anyone_can_refund_from_the_deadline_on": CLOCK,
        "test_dispute_stops_everyone_but_the_arbiter": CLOCK,
        "test_arbiter_decides": CLOCK,
        "test_anyone_can_refund_a_dispute_undecided_for_thirty_days": CLOCK,
        "test_settled_escrow_is_gone_for_every_instruction": CLOCK,
        "test_creation_moves_the_amount_and_reports_everything": EXACT,
    },
    "test_freezing": {
        "test_nobody_else_can_freeze_or_unfreeze": CLOCK,
        "test_anyone_can_freeze_a_vault_of_an_expired_policy_once": CLOCK,
        "test_operator_lifts_an_expiry_freeze_once_the_policy_is_extended": CLOCK,
        "test_operator_lifts_an_expiry_freeze_once_the_vault_has_another_policy": CLOCK,
        "test_operator_cannot_lift_an_expiry_freeze_that_became_manual": CLOCK,
        "test_authority_cannot_lift_a_freeze_under_an_expired_policy": CLOCK,
        "test_clock_that_steps_back_does_not_undo_an_expiry": CLOCK,
    },
    "test_funding": {"test_limit_counts_any_24_hours": CLOCK},
    "test_mints": {
        "test_extension_that_only_describes_is_accepted": PLACED,
        "test_extension_with_power_over_the_money_is_refused": PLACED,
        "test_account_extensions_and_unknown_ones_are_refused": PLACED,
        "test_truncated_and_hidden_extensions_are_refused": PLACED,
        "test_account_that_is_not_a_mint_is_refused": PLACED,
        "test_organisation_on_token_2022_funds_pays_and_withdraws[extensions1]": PLACED,
        "test_organisation_on_token_2022_funds_pays_and_withdraws[extensions2]": PLACED,
    },
    "test_organisations": {
        "test_existing_reserve_is_adopted_only_if_nobody_else_controls_it": PLACED,
    },
    "test_payments": {
        "test_payment_uses_the_ledgers_time_when_the_clock_steps_back": CLOCK,
        "test_payment_is_charged_even_if_no_rule_is_set": EXACT,
        "test_only_token_accounts_of_the_mint_can_be_paid": PLACED,
        "test_multisig_that_looks_like_a_token_account_is_not_paid": PLACED,
        "test_amount_that_the_ledger_cannot_count_is_an_error": PLACED,
        "test_exhausted_sequence_is_an_error": PLACED,
    },
    "test_policies": {},
    "test_recipients": {
        "test_operators_attestation_allows_nothing_before_the_delay": CLOCK,
        "test_operators_attestation_blocks_at_once_even_if_the_clock_steps_back": CLOCK,
        "test_unregistered_recipient_can_be_blocked_as_uncategorized": CLOCK,
        "test_authority_overwrites_what_stands_at_a_recipients_address": PLACED,
    },
    "test_rules": {
        "test_policy_allows_payments_in_its_last_second_and_not_after": CLOCK,
        "test_velocity_cap_counts_any_hour": CLOCK,
        "test_max_per_day_counts_any_24_hours": CLOCK,
        "test_max_per_month_counts_the_utc_calendar_month": CLOCK,
        "test_clock_that_steps_back_frees_no_budget": CLOCK,
        "test_largest_limits_allow_everything": PLACED,
    },
    "test_wallets": {
        "test_session_authority_signs_until_it_expires": CLOCK,
        "test_vault_with_money_or_open_escrows_cannot_be_archived": PLACED,
        "test_token_account_that_others_control_is_not_adopted": PLACED,
        "test_existing_token_account_of_another_owner_is_refused": PLACED,
        "test_lamports_sent_ahead_do_not_block_new_accounts[1]": POOR,
        "test_lamports_sent_ahead_do_not_block_a_new_organisation": POOR,
    },
}
"""Modules of `tests/program`, each with the excluded tests (functions, or single parameters) and the reason."""

SMOKE = {
    "test_approvals": {"test_approved_payment_passes_once_and_closes_the_approval"},
    "test_escrow_proofs": {"test_signature_is_proof_whoever_submits_it[1]"},
    "test_escrow_settlement": {"test_both_token_programs_work[by_completion-token_program1]"},
    "test_organisations": {"test_operator_pauses_and_the_authority_resumes"},
    "test_payments": {"test_payment_moves_the_amount_and_reports_everything[True]"},
}
"""Tests that always run; the others need `--full`."""
