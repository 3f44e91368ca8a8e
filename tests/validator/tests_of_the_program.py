"""Which tests of the program run on the validator: all of the modules listed here, but for those that are left out."""

CLOCK = "moves the clock"
EXACT = "counts on the time at which a VM starts, to the second"
PLACED = "places an account or program that no transaction makes"
LARGE = "sends more than the 1,232 bytes that a transaction may have"
UNSIGNED = "sends a transaction that nobody signs"
POOR = "sends less than an account must hold, which a validator refuses"
OTHERWISE = "is refused with another error, or at all, by a newer runtime"
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
        # It wants the program itself among the accounts of an instruction that makes the program call itself.
        "test_what_counts_as_no_attack_is_accepted": OTHERWISE,
    },
    "test_allowlists": {},
    "test_approvals": {
        "test_approval_counts_until_its_time_and_not_from_it_on": CLOCK,
        "test_anyone_clears_an_approval_away_from_its_time_on": CLOCK,
        "test_approval_lives_at_most_a_day": EXACT,
    },
    "test_check_payment": {
        "test_payment_passes_when_the_preview_says_by_velocity_cap": CLOCK,
        "test_payment_passes_when_the_preview_says_by_max_per_day": CLOCK,
        "test_payment_passes_when_the_preview_says_by_max_per_month": CLOCK,
        "test_payment_passes_when_the_last_of_its_rules_lets_it": CLOCK,
        "test_payment_that_passes_in_the_policys_last_second_has_that_time": CLOCK,
        "test_clock_that_has_stepped_back_is_judged_at_the_ledgers_time": CLOCK,
        "test_verdict_of_each_rule_has_limit_attempted_and_headroom": EXACT,
        "test_payment_that_never_passes_has_no_time[rules5]": EXACT,
        "test_payment_that_would_pass_only_after_the_policy_has_expired_never_passes": EXACT,
    },
    "test_escrow_budgets": {
        "test_refund_gives_back_to_the_slot_and_month_it_was_charged_to": CLOCK,
        "test_refund_gives_no_velocity_back": CLOCK,
        "test_refund_leaves_the_time_of_the_ledger": CLOCK,
        "test_refund_gives_back_to_the_day_while_its_slot_is_in_the_window": CLOCK,
        "test_refund_while_in_the_window_moves_nothing_to_another_slot": CLOCK,
        "test_refund_after_days_without_a_payment_makes_no_more_room_than_there_is": CLOCK,
        "test_refund_in_another_month_gives_nothing_back_to_it": CLOCK,
        "test_refund_later_in_the_month_gives_back_to_the_month_alone": CLOCK,
        "test_nothing_is_given_back_twice": CLOCK,
        "test_clock_that_steps_back_charges_to_the_slot_of_the_last_payment": CLOCK,
        "test_refund_takes_no_more_out_of_a_slot_than_is_in_it": PLACED,
    },
    "test_escrow_creation": {
        "test_session_creates_until_its_time_and_not_from_it_on": CLOCK,
        "test_vault_has_at_most_64_open_escrows": CLOCK,
        "test_lamports_sent_ahead_do_not_block_creation_and_go_to_the_payer": CLOCK,
        "test_clock_that_steps_back_does_not_change_the_time_of_a_creation": CLOCK,
        "test_each_rule_refuses_and_says_so[rules0-PolicyExpired-violation0]": EXACT,
        "test_every_rule_reaches_its_limit_and_escrows_and_payments_add_up": EXACT,
        "test_timeout_is_from_a_minute_to_thirty_days": EXACT,
    },
    "test_escrow_disputes": {
        "test_sessions_dispute_until_their_time_and_not_from_it_on": CLOCK,
        "test_key_of_both_sides_speaks_for_the_one_whose_session_lasts": CLOCK,
        "test_without_an_arbiter_a_dispute_is_refunded_in_time": CLOCK,
        "test_late_decision_counts_until_somebody_refunds": CLOCK,
        "test_clock_that_steps_back_opens_nothing_again": CLOCK,
    },
    "test_escrow_proofs": {
        "test_receivers_session_counts_until_its_time_and_not_from_it_on": CLOCK,
        "test_requesters_session_that_ended_shows_nothing_and_the_next_one_does": CLOCK,
        "test_only_this_very_message_is_proof": LARGE,
        "test_proof_is_used_once": LARGE,
        "test_rotated_session_of_the_receiver_counts_no_more": LARGE,
    },
    "test_escrow_receivers": {
        "test_lookalike_of_the_associated_token_program_makes_nothing": PLACED,
        "test_receivers_closed_token_account_is_made_again": PLACED,
        "test_receiver_that_cannot_be_paid_does_not_lock_the_requesters_money": PLACED,
    },
    "test_escrow_settlement": {
        "test_rent_of_both_accounts_goes_back_to_who_paid_it[by_refund]": CLOCK,
        "test_rent_goes_to_nobody_else[by_refund]": CLOCK,
        "test_donated_tokens_go_to_the_requester_and_credit_nothing[by_refund]": CLOCK,
        "test_escrow_is_settled_with_its_own_tokens_and_vault_alone[by_refund]": CLOCK,
        "test_both_token_programs_will_do[by_refund-token_program0]": CLOCK,
        "test_both_token_programs_will_do[by_refund-token_program1]": CLOCK,
        "test_one_key_in_all_roles_settles": CLOCK,
        "test_neither_pause_nor_freeze_nor_policy_stops_a_settlement": EXACT,
        "test_payer_without_lamports_gets_the_rent": PLACED,
        "test_rent_goes_to_the_vault_when_the_payer_became_a_programs_account": PLACED,
        "test_sequence_that_ends_is_an_error": PLACED,
    },
    "test_escrow_signatures": {
        "test_what_stands_in_another_instruction_does_not_count": LARGE,
        "test_signature_counts_only_right_before_the_completion": LARGE,
        "test_lookalike_of_the_ed25519_program_does_not_count": PLACED,
        "test_forged_list_of_instructions_does_not_count": PLACED,
        "test_completion_that_is_the_first_instruction_has_no_proof": UNSIGNED,
    },
    "test_escrows": {
        "test_completion_pays_the_receiver": CLOCK,
        "test_refund_from_the_deadline_on_by_anyone": CLOCK,
        "test_dispute_stops_everything_but_the_arbiter": CLOCK,
        "test_arbiter_decides": CLOCK,
        "test_undecided_dispute_is_refunded_after_thirty_days_by_anyone": CLOCK,
        "test_settled_escrow_is_gone_whatever_is_asked_of_it": CLOCK,
        "test_creation_moves_the_amount_and_tells_all_about_it": EXACT,
    },
    "test_freezing": {
        "test_others_neither_freeze_nor_lift_a_freeze": CLOCK,
        "test_anyone_freezes_a_vault_of_an_expired_policy_once": CLOCK,
        "test_operator_lifts_an_expiry_freeze_once_the_policy_is_extended": CLOCK,
        "test_operator_lifts_an_expiry_freeze_once_the_vault_has_another_policy": CLOCK,
        "test_expiry_freeze_becomes_a_manual_one_that_the_operator_does_not_lift": CLOCK,
        "test_authority_lifts_a_manual_freeze_only_under_a_policy_that_has_not_expired": CLOCK,
        "test_clock_that_steps_back_does_not_undo_an_expiry": CLOCK,
    },
    "test_funding": {"test_limit_counts_any_24_hours": CLOCK},
    "test_mints": {
        "test_extension_that_only_describes_is_accepted": PLACED,
        "test_extension_with_power_over_the_money_is_refused": PLACED,
        "test_extension_of_accounts_or_of_the_future_is_refused": PLACED,
        "test_extensions_cut_short_or_hidden_behind_the_end_are_refused": PLACED,
        "test_what_is_no_mint_is_refused": PLACED,
        "test_organisation_on_token_2022_funds_pays_and_withdraws[extensions1]": PLACED,
        "test_organisation_on_token_2022_funds_pays_and_withdraws[extensions2]": PLACED,
    },
    "test_organisations": {
        "test_reserve_that_somebody_has_made_is_taken_over_only_when_nobody_has_a_hand_in_it": PLACED,
    },
    "test_payments": {
        "test_clock_that_steps_back_does_not_change_the_time_of_a_payment": CLOCK,
        "test_payment_is_charged_though_no_rule_is_set": EXACT,
        "test_what_is_no_token_account_of_the_mint_is_not_paid": PLACED,
        "test_amount_that_the_ledger_cannot_count_is_an_error": PLACED,
        "test_sequence_that_ends_is_an_error": PLACED,
    },
    "test_policies": {},
    "test_recipients": {
        "test_operators_word_opens_nothing_before_the_delay": CLOCK,
        "test_operators_word_closes_at_once_and_also_under_a_clock_that_steps_back": CLOCK,
        "test_unregistered_recipient_is_uncategorized_which_can_be_blocked": CLOCK,
    },
    "test_rules": {
        "test_expiry_pays_in_its_second_and_not_after": CLOCK,
        "test_velocity_cap_counts_any_hour": CLOCK,
        "test_max_per_day_counts_any_24_hours": CLOCK,
        "test_max_per_month_counts_the_utc_calendar_month": CLOCK,
        "test_clock_that_steps_back_opens_nothing": CLOCK,
        "test_largest_limits_let_everything_pass": PLACED,
    },
    "test_wallets": {
        "test_session_authority_signs_until_its_time_and_not_from_it_on": CLOCK,
        "test_vault_with_money_or_open_escrows_is_not_archived": PLACED,
        "test_token_account_that_others_have_a_hand_in_is_not_taken_over": PLACED,
        "test_token_account_made_beforehand_for_another_owner_is_refused": PLACED,
        "test_lamports_sent_to_addresses_beforehand_stop_nothing[1]": POOR,
        "test_organisation_is_made_though_lamports_were_sent_to_its_addresses": POOR,
    },
}
"""Modules of `tests/program`, each with the tests that are left out and why: a function, or one of its parameters."""

SMOKE = {
    "test_approvals": {"test_approved_payment_passes_once_and_closes_the_approval"},
    "test_escrow_proofs": {"test_signature_is_proof_whoever_brings_it[1]"},
    "test_escrow_settlement": {"test_both_token_programs_will_do[by_completion-token_program1]"},
    "test_organisations": {"test_operator_pauses_and_the_authority_lets_go_on"},
    "test_payments": {"test_payment_moves_the_amount_and_tells_all_about_it[True]"},
}
"""Those that run always; the others with `--full`."""
