//! Wrong transports and stores, each of which a named case must catch: the suite itself is tested by them.
//!
//! They are wrappers over honest subjects, so any subject can be sabotaged.

mod store;
mod transport;

use std::{fmt, sync::Arc, time::Duration};

pub use self::{
    store::{SabotagedStore, SabotagedStoreSubject, StoreSabotage},
    transport::{SabotagedTransportSubject, TransportSabotage},
};
use crate::{
    harness::{FullStoreSubject, TransportSubject},
    memory::MemoryStoreSubject,
    suite::{Case, end_to_end_cases, store_cases, transport_cases},
};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// By the transport.
    Transport(TransportSabotage),
    /// By the store.
    Store(StoreSabotage),
}

/// One way of being wrong, and the cases that must notice.
#[derive(Clone, Copy, Debug)]
pub struct Saboteur {
    /// What is done wrong.
    pub sabotage: Sabotage,
    /// The same in a sentence.
    pub wrong: &'static str,
    /// The names of cases, each of which fails.
    pub caught_by: &'static [&'static str],
}

impl fmt::Display for Saboteur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sabotage {
            Sabotage::Transport(how) => write!(f, "transport {how:?}"),
            Sabotage::Store(how) => write!(f, "store {how:?}"),
        }
    }
}

const fn transport(how: TransportSabotage, wrong: &'static str, caught_by: &'static [&'static str]) -> Saboteur {
    Saboteur { sabotage: Sabotage::Transport(how), wrong, caught_by }
}

const fn store(how: StoreSabotage, wrong: &'static str, caught_by: &'static [&'static str]) -> Saboteur {
    Saboteur { sabotage: Sabotage::Store(how), wrong, caught_by }
}

/// All of them.
pub const SABOTEURS: &[Saboteur] = &[
    transport(
        TransportSabotage::SkipsSome,
        "hands over only nine messages of ten and acks the tenth itself",
        &["t01_every_message_is_handed_over", "e01_each_effect_once_and_keys_in_order"],
    ),
    transport(
        TransportSabotage::ChangesHeaders,
        "takes header values for text",
        &["t02_content_is_as_published", "e38_bodies_and_headers_of_any_size_reach_the_handler"],
    ),
    transport(
        TransportSabotage::AcksAtReceive,
        "acks a message when it hands it over",
        &[
            "t03_an_unacked_delivery_comes_again",
            "e07_a_crash_before_commit_loses_nothing",
            "e06_a_crash_between_commit_and_ack_runs_nothing_again",
            "e39_an_outage_counts_nothing_and_loses_nothing",
        ],
    ),
    transport(
        TransportSabotage::LosesDropped,
        "does not hand a message over again when its receipt is dropped",
        &["t03_an_unacked_delivery_comes_again"],
    ),
    transport(
        TransportSabotage::IgnoresCapacity,
        "hands over more than was asked for",
        &["t04_capacity_is_kept", "e12_what_is_in_flight_is_bounded"],
    ),
    transport(
        TransportSabotage::Reorders,
        "hands over what it fetched last first",
        &[
            "t05_a_key_keeps_its_order_also_when_it_comes_again",
            "e01_each_effect_once_and_keys_in_order",
            "e42_a_lost_lease_takes_its_followers_along",
        ],
    ),
    transport(
        TransportSabotage::IsNotCancelSafe,
        "loses what it holds when `receive` is dropped",
        &["t06_a_cancelled_receive_loses_nothing"],
    ),
    transport(
        TransportSabotage::AcksNothing,
        "says that it acked, and does not",
        &["t07_an_acked_delivery_never_comes_again", "e05_a_batch_of_duplicates_is_acked"],
    ),
    transport(
        TransportSabotage::CountsLostAsAcked,
        "says that it acked receipts of a lost session",
        &["t08_receipts_of_a_lost_session_are_lost_not_errors"],
    ),
    transport(
        TransportSabotage::LosesWithSession,
        "does not hand over again what was held when a session was lost",
        &["t08_receipts_of_a_lost_session_are_lost_not_errors", "e15_a_lost_session_loses_nothing"],
    ),
    transport(
        TransportSabotage::AcksReleased,
        "takes a release for an ack",
        &["t09_a_released_delivery_comes_again_soon"],
    ),
    transport(
        TransportSabotage::NeverCloses,
        "goes on after `close`, and keeps what it holds",
        &["t10_close_gives_back_and_ends"],
    ),
    transport(
        TransportSabotage::ConfirmsUnstored,
        "confirms messages that the broker has not stored",
        &[
            "t11_publish_answers_for_each_message",
            "e01_each_effect_once_and_keys_in_order",
            "e13_a_graceful_shutdown_runs_nothing_again",
        ],
    ),
    transport(
        TransportSabotage::SharesGroups,
        "gives all groups one position",
        &["t12_groups_are_independent", "e10_consumers_of_different_names_each_run_all"],
    ),
    transport(
        TransportSabotage::Broadcasts,
        "gives every consumer of a group every message",
        &["t13_consumers_of_a_group_compete", "t15_a_key_is_with_one_consumer_at_a_time"],
    ),
    transport(
        TransportSabotage::MiscountsDeliveries,
        "says of every delivery that it is the first, and never a suspect",
        &["t14_capabilities_are_honest"],
    ),
    store(
        StoreSabotage::ForgetsLast,
        "claims all of a batch but the last, and says that it is New",
        &["s01_one_committed_transaction_gets_new", "e03_copies_far_apart_run_once"],
    ),
    store(
        StoreSabotage::ClaimsOutside,
        "commits claims in a transaction of their own, before the handler's",
        &[
            "s02_a_claim_lives_as_long_as_its_transaction",
            "e07_a_crash_before_commit_loses_nothing",
            "e17_only_the_failing_message_is_retried",
        ],
    ),
    store(
        StoreSabotage::EffectsOutside,
        "commits effects in a transaction of their own",
        &[
            "s02_a_claim_lives_as_long_as_its_transaction",
            "e26_a_rejected_message_is_quarantined_at_once",
            "e14_a_handler_beyond_the_shutdown_deadline_is_rolled_back",
            "e16_process_runs_one_message_without_a_broker",
            "e18_a_failing_message_holds_back_its_key_only",
            "e19_a_batch_in_which_all_fail_is_bounded",
            "e21_copies_share_the_fate_of_a_failing_first",
            "e23_a_suspect_waits_behind_its_key",
            "e27_a_panic_is_a_failed_attempt",
            "e28_a_handler_beyond_its_timeout_is_a_failed_attempt",
            "e32_a_handler_sees_its_attempt",
            "e33_a_quarantined_message_that_comes_again_stays_one_row",
            "e41_an_unknown_commit_is_claimed_again",
        ],
    ),
    store(
        StoreSabotage::NeverWaits,
        "takes an id that another open transaction holds for a duplicate",
        &["s03_a_claim_waits_for_an_open_one", "e24_an_id_held_elsewhere_holds_back_its_key_only"],
    ),
    store(
        StoreSabotage::SwallowsClaimTimeout,
        "says New when the claim has failed",
        &["s03_a_claim_waits_for_an_open_one", "e24_an_id_held_elsewhere_holds_back_its_key_only"],
    ),
    store(
        StoreSabotage::IgnoresFingerprint,
        "does not look at fingerprints",
        &["s04_another_fingerprint_is_a_conflict", "e22_a_second_content_of_an_id_is_kept"],
    ),
    store(
        StoreSabotage::MixesFingerprints,
        "compares the fingerprints of a batch in another order than that of its ids",
        &["s04_another_fingerprint_is_a_conflict"],
    ),
    store(
        StoreSabotage::UnclaimsNothing,
        "leaves the claims of what did not run",
        &["s05_an_unclaimed_id_is_new_again", "e11_a_batch_that_takes_too_long_is_cut"],
    ),
    store(
        StoreSabotage::CommitsUnresolved,
        "commits though nothing was said of a claimed id",
        &["s06_an_unresolved_id_stops_the_commit"],
    ),
    store(
        StoreSabotage::IgnoresAborted,
        "takes the commit of an aborted transaction for a success",
        &["s07_a_swallowed_error_stops_the_commit", "e29_a_swallowed_error_is_a_failed_attempt"],
    ),
    store(
        StoreSabotage::IgnoresEscape,
        "does not notice that a handler ended the transaction",
        &["s08_a_handlers_own_commit_or_rollback_keeps_nothing", "e30_a_handlers_own_commit_or_rollback_stops_run"],
    ),
    store(
        StoreSabotage::RollsBackAtCommit,
        "says that it committed, and rolls back",
        &[
            "s09_commit_is_visible_to_everybody",
            "e01_each_effect_once_and_keys_in_order",
            "e02_copies_in_one_batch_run_once",
            "e08_killed_at_random_each_effect_once",
            "e09_run_dropped_at_random_each_effect_once",
            "e20_flaky_handlers_are_bounded",
            "e35_any_text_is_an_id",
            "e40_an_outage_at_the_start_is_waited_out",
        ],
    ),
    store(
        StoreSabotage::CountsInMemory,
        "counts attempts in the process",
        &["s10_attempts_are_counted_until_there_is_a_claim", "e31_attempts_survive_a_restart"],
    ),
    store(
        StoreSabotage::GivesUpSilently,
        "gives a message up without keeping it",
        &[
            "s11_giving_up_is_part_of_the_transaction",
            "e25_the_last_attempt_quarantines",
            "e34_a_message_without_a_usable_id_is_kept",
            "e36_an_undecodable_message_is_kept",
            "e37_an_unrouted_message_is_kept",
        ],
    ),
    store(
        StoreSabotage::KeepsNothing,
        "does not keep a second content",
        &["s12_kept_copies_share_a_row", "e22_a_second_content_of_an_id_is_kept"],
    ),
    store(
        StoreSabotage::SharesConsumers,
        "gives all consumers one number",
        &["s13_consumers_are_independent", "e10_consumers_of_different_names_each_run_all"],
    ),
    store(
        StoreSabotage::RegistersAnew,
        "gives a consumer a new number each time",
        &["s13_consumers_are_independent", "e04_instances_that_race_run_each_id_once"],
    ),
    store(
        StoreSabotage::MigratesOnce,
        "fails to migrate what is migrated already",
        &["s14_migrate_may_run_again_and_at_once"],
    ),
    store(
        StoreSabotage::ReadsErrorTexts,
        "finds out whose fault an error is by its text",
        &["s15_a_handlers_error_is_the_messages"],
    ),
    store(
        StoreSabotage::BlamesItself,
        "takes every error for the database's",
        &["s15_a_handlers_error_is_the_messages", "e25_the_last_attempt_quarantines"],
    ),
    store(
        StoreSabotage::ClaimsOneByOne,
        "claims ids one by one, in the order given",
        &["s16_overlapping_claims_never_deadlock"],
    ),
    store(StoreSabotage::HidesFailures, "shows the newest failures first", &["s17_the_operator_sees_what_is_there"]),
];

/// The table of saboteurs, as `docs/SABOTEURS.md` shows it.
#[must_use]
pub fn table() -> String {
    let mut text = String::from(
        "# Saboteurs\n\n\
         Wrong transports and stores, and the cases of the suite that catch them. Written by `INBOX_BLESS=1 cargo test -p \
         inbox-conformance --test saboteurs`, which also runs each of them: every case named here fails with its \
         saboteur, and passes without.\n\n\
         | who | what is wrong | caught by |\n| --- | --- | --- |\n",
    );
    for saboteur in SABOTEURS {
        let cases: Vec<String> = saboteur.caught_by.iter().map(|case| format!("`{case}`")).collect();
        text.push_str(&format!("| {saboteur} | {} | {} |\n", saboteur.wrong, cases.join(", ")));
    }
    text.push_str("\n## By case\n\n| case | catches |\n| --- | --- |\n");
    for case in case_names() {
        let caught: Vec<String> = caught_by(case).map(ToString::to_string).collect();
        text.push_str(&format!("| `{case}` | {} |\n", caught.join(", ")));
    }
    text
}

/// The saboteurs for which `case` is known to fail.
pub fn caught_by(case: &str) -> impl Iterator<Item = &'static Saboteur> {
    SABOTEURS.iter().filter(move |saboteur| saboteur.caught_by.contains(&case))
}

/// The names of all cases of the suite.
#[must_use]
pub fn case_names() -> Vec<&'static str> {
    let transports = transport_cases().into_iter().map(|case| case.name);
    let stores = store_cases::<MemoryStoreSubject>().into_iter().map(|case| case.name);
    let whole = end_to_end_cases::<MemoryStoreSubject>().into_iter().map(|case| case.name);
    transports.chain(stores).chain(whole).collect()
}

/// A case of that name over a sabotaged or honest pair, whatever its kind.
///
/// # Errors
/// Why the case failed.
///
/// # Panics
/// When there is no case of that name.
pub fn run<T, S>(
    sabotage: Option<Sabotage>,
    case: &str,
    transport: &Arc<T>,
    store: &Arc<S>,
    deadline: Duration,
) -> Result<(), String>
where
    T: TransportSubject,
    S: FullStoreSubject,
{
    let (of_transport, of_store) = match sabotage {
        Some(Sabotage::Transport(how)) => (how, StoreSabotage::None),
        Some(Sabotage::Store(how)) => (TransportSabotage::None, how),
        None => (TransportSabotage::None, StoreSabotage::None),
    };
    let transport: Arc<dyn TransportSubject> =
        Arc::new(SabotagedTransportSubject::new(Arc::clone(transport) as _, of_transport));
    let store = Arc::new(SabotagedStoreSubject::new(Arc::clone(store), of_store));
    match &case[..1] {
        "t" => named(transport_cases(), case).run(transport, deadline),
        "s" => named(store_cases(), case).run(store, deadline),
        _ => named(end_to_end_cases(), case).run((transport, store), deadline),
    }
}

fn named<G>(cases: Vec<Case<G>>, name: &str) -> Case<G> {
    cases.into_iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case {name}"))
}
