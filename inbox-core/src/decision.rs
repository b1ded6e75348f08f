//! What to do with a message whose transaction did not commit. Pure: no async, no clock, no I/O.

use crate::{failure_store::Reason, store::Blame};

/// What is known of a message that was in a transaction which did not commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Whose fault it was.
    pub blame: Blame,
    /// Whether the failure is pinned on this message: its handler failed, timed out, panicked or rejected.
    pub pinned: bool,
    /// Whether no other handler had run in the transaction before this message's.
    pub ran_first: bool,
    /// Whether the transaction held this message alone.
    pub alone: bool,
    /// Whether the handler rejected the message.
    pub rejected: bool,
    /// How often the message was rolled back before, uncounted.
    pub rollbacks: u32,
    /// How often it met errors of the database alone, while other commits succeeded.
    pub unstable: u32,
}

/// What to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Run it again in a batch; nothing is counted.
    Again,
    /// Run it again in a transaction of its own; nothing is counted.
    Alone,
    /// Count an attempt, wait, run it alone.
    CountAttempt,
    /// Quarantine it without another run.
    Quarantine(Reason),
}

/// A message that was rolled back this often uncounted runs alone from then on.
pub(crate) const ROLLBACKS_BEFORE_ALONE: u32 = 2;
/// A message that met errors of the database this often, alone, while others went through, is quarantined.
pub(crate) const UNSTABLE_AFTER: u32 = 20;

/// Decides.
///
/// A failure counts as an attempt only if nothing else ran before it in its transaction: what fails only in company is
/// not the message's fault. What cannot be pinned on one message makes all of them run one by one.
#[must_use]
pub(crate) fn decide(facts: &Facts) -> Decision {
    match facts.blame {
        Blame::Infrastructure | Blame::Contention => {
            if facts.alone && facts.unstable >= UNSTABLE_AFTER {
                Decision::Quarantine(Reason::Unstable)
            } else if facts.pinned || facts.rollbacks + 1 >= ROLLBACKS_BEFORE_ALONE {
                Decision::Alone
            } else {
                Decision::Again
            }
        }
        Blame::Message | Blame::Unpinned => {
            if facts.alone || (facts.pinned && facts.ran_first) {
                if facts.rejected { Decision::Quarantine(Reason::Rejected) } else { Decision::CountAttempt }
            } else if facts.pinned || facts.rollbacks + 1 >= ROLLBACKS_BEFORE_ALONE {
                Decision::Alone
            } else {
                Decision::Again
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM: Facts = Facts {
        blame: Blame::Message,
        pinned: false,
        ran_first: false,
        alone: false,
        rejected: false,
        rollbacks: 0,
        unstable: 0,
    };

    #[test]
    fn a_failure_in_company_is_no_attempt() {
        assert_eq!(decide(&Facts { pinned: true, ..CALM }), Decision::Alone);
        assert_eq!(decide(&Facts { pinned: true, ran_first: true, ..CALM }), Decision::CountAttempt);
        assert_eq!(decide(&Facts { pinned: true, rejected: true, ..CALM }), Decision::Alone);
    }

    #[test]
    fn companions_go_back_and_after_the_second_rollback_run_alone() {
        assert_eq!(decide(&CALM), Decision::Again);
        assert_eq!(decide(&Facts { rollbacks: 1, ..CALM }), Decision::Alone);
    }

    fn facts() -> impl Strategy<Value = Facts> {
        let blame = prop_oneof![Just(Blame::Message), Just(Blame::Infrastructure), Just(Blame::Contention)];
        (blame, any::<[bool; 4]>(), 0_u32..4, 0_u32..30).prop_map(
            |(blame, [pinned, ran_first, alone, rejected], rollbacks, unstable)| Facts {
                blame,
                pinned,
                ran_first,
                alone,
                rejected,
                rollbacks,
                unstable,
            },
        )
    }

    proptest! {
        #[test]
        fn nothing_is_counted_that_is_not_the_messages_fault(facts in facts()) {
            if facts.blame != Blame::Message {
                prop_assert_ne!(decide(&facts), Decision::CountAttempt);
            }
        }

        #[test]
        fn no_message_runs_in_company_a_third_time(facts in facts()) {
            if facts.rollbacks + 1 >= ROLLBACKS_BEFORE_ALONE {
                prop_assert_ne!(decide(&facts), Decision::Again);
            }
        }
    }
}
