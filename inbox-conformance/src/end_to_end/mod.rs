//! One case for each guarantee of the whole: transport, store and runtime together.

mod delivery;
mod failure;
mod input;
mod scene;
mod stopping;
mod trouble;

use self::{
    delivery::{
        e01_each_effect_once_and_keys_in_order, e02_copies_in_one_batch_run_once, e03_copies_far_apart_run_once,
        e04_instances_that_race_run_each_id_once, e05_a_batch_of_duplicates_is_acked,
        e06_a_crash_between_commit_and_ack_runs_nothing_again, e07_a_crash_before_commit_loses_nothing,
        e08_killed_at_random_each_effect_once, e09_run_dropped_at_random_each_effect_once,
        e10_consumers_of_different_names_each_run_all, e11_a_batch_that_takes_too_long_is_cut,
        e12_what_is_in_flight_is_bounded, e16_process_runs_one_message_without_a_broker,
    },
    failure::{
        e17_only_the_failing_message_is_retried, e18_a_failing_message_holds_back_its_key_only,
        e19_a_batch_in_which_all_fail_is_bounded, e20_flaky_handlers_are_bounded,
        e21_copies_share_the_fate_of_a_failing_first, e22_a_second_content_of_an_id_is_kept,
        e23_a_suspect_waits_behind_its_key, e24_an_id_held_elsewhere_holds_back_its_key_only,
        e25_the_last_attempt_quarantines, e26_a_rejected_message_is_quarantined_at_once,
        e27_a_panic_is_a_failed_attempt, e28_a_handler_beyond_its_timeout_is_a_failed_attempt,
        e29_a_swallowed_error_is_a_failed_attempt, e30_a_handlers_own_commit_or_rollback_stops_run,
        e31_attempts_survive_a_restart, e32_a_handler_sees_its_attempt,
        e33_a_quarantined_message_that_comes_again_stays_one_row,
    },
    input::{
        e34_a_message_without_a_usable_id_is_kept, e35_any_text_is_an_id, e36_an_undecodable_message_is_kept,
        e37_an_unrouted_message_is_kept, e38_bodies_and_headers_of_any_size_reach_the_handler,
    },
    scene::Scene,
    stopping::{
        e13_a_graceful_shutdown_runs_nothing_again, e14_a_handler_beyond_the_shutdown_deadline_is_rolled_back,
        e15_a_lost_session_loses_nothing, e42_a_lost_lease_takes_its_followers_along,
    },
    trouble::{
        e39_an_outage_counts_nothing_and_loses_nothing, e40_an_outage_at_the_start_is_waited_out,
        e41_an_unknown_commit_is_claimed_again,
    },
};
use crate::{
    harness::FullStoreSubject,
    suite::{Case, Pair, cases},
};

pub(crate) fn all<S: FullStoreSubject>() -> Vec<Case<Pair<S>>> {
    cases![Scene<S>:
        e01_each_effect_once_and_keys_in_order,
        e02_copies_in_one_batch_run_once,
        e03_copies_far_apart_run_once,
        e04_instances_that_race_run_each_id_once,
        e05_a_batch_of_duplicates_is_acked,
        e06_a_crash_between_commit_and_ack_runs_nothing_again,
        e07_a_crash_before_commit_loses_nothing,
        e08_killed_at_random_each_effect_once,
        e09_run_dropped_at_random_each_effect_once,
        e10_consumers_of_different_names_each_run_all,
        e11_a_batch_that_takes_too_long_is_cut,
        e12_what_is_in_flight_is_bounded,
        e13_a_graceful_shutdown_runs_nothing_again,
        e14_a_handler_beyond_the_shutdown_deadline_is_rolled_back,
        e15_a_lost_session_loses_nothing [BreakSessions],
        e16_process_runs_one_message_without_a_broker,
        e17_only_the_failing_message_is_retried,
        e18_a_failing_message_holds_back_its_key_only,
        e19_a_batch_in_which_all_fail_is_bounded,
        e20_flaky_handlers_are_bounded,
        e21_copies_share_the_fate_of_a_failing_first,
        e22_a_second_content_of_an_id_is_kept,
        e23_a_suspect_waits_behind_its_key,
        e24_an_id_held_elsewhere_holds_back_its_key_only [ConcurrentTransactions],
        e25_the_last_attempt_quarantines,
        e26_a_rejected_message_is_quarantined_at_once,
        e27_a_panic_is_a_failed_attempt,
        e28_a_handler_beyond_its_timeout_is_a_failed_attempt,
        e29_a_swallowed_error_is_a_failed_attempt [StatementsAbort],
        e30_a_handlers_own_commit_or_rollback_stops_run [RawTransactionControl],
        e31_attempts_survive_a_restart,
        e32_a_handler_sees_its_attempt,
        e33_a_quarantined_message_that_comes_again_stays_one_row,
        e34_a_message_without_a_usable_id_is_kept,
        e35_any_text_is_an_id,
        e36_an_undecodable_message_is_kept,
        e37_an_unrouted_message_is_kept,
        e38_bodies_and_headers_of_any_size_reach_the_handler,
        e39_an_outage_counts_nothing_and_loses_nothing,
        e40_an_outage_at_the_start_is_waited_out,
        e41_an_unknown_commit_is_claimed_again,
        e42_a_lost_lease_takes_its_followers_along [Ordering, LoseLeases],
    ]
}
