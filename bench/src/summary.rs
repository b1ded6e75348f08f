//! From runs to figures: spreads, ratios within a round, goals. Pure.

use crate::contestant::{Contestant, Measured};

/// A contestant's run in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) contestant: Contestant,
    pub(crate) round: usize,
    pub(crate) records: usize,
    pub(crate) measured: Measured,
}

impl Run {
    fn messages(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "millions")]
        let messages = self.records as f64;
        messages
    }

    /// Messages a second, copies included.
    pub(crate) fn rate(&self) -> f64 {
        self.messages() / self.measured.seconds
    }

    /// Microseconds a message, of seconds in all.
    fn micros(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.messages()
    }
}

/// Figures of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` without a figure.
    pub(crate) fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.collect();
        figures.sort_by(f64::total_cmp);
        let (least, most) = (*figures.first()?, *figures.last()?);
        let middle = figures.len() / 2;
        let median =
            if figures.len() % 2 == 1 { figures[middle] } else { f64::midpoint(figures[middle - 1], figures[middle]) };
        Some(Self { least, median, most })
    }
}

/// A contestant's figures over all rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) contestant: Contestant,
    pub(crate) rate: Spread,
    /// Messages a transaction.
    pub(crate) batch: Option<f64>,
    /// Processor time in microseconds a message.
    pub(crate) client: f64,
    pub(crate) database: Option<f64>,
    pub(crate) broker: Option<f64>,
}

/// How much faster one contestant has to be than another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) of: Contestant,
    pub(crate) to: Contestant,
    pub(crate) least: f64,
}

/// What is promised.
const GOALS: [Goal; 4] = [
    Goal { of: Contestant::Ours1, to: Contestant::Hand1, least: 4.0 },
    Goal { of: Contestant::Ours, to: Contestant::Hand16, least: 3.5 },
    Goal { of: Contestant::Ours1, to: Contestant::Batch1, least: 0.9 },
    Goal { of: Contestant::Ours, to: Contestant::Batch4, least: 0.9 },
];

/// A goal and the ratios of the rounds.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) goal: Goal,
    /// Of each round, in their order.
    pub(crate) rounds: Vec<f64>,
    pub(crate) ratio: Spread,
}

impl Verdict {
    /// `None` without a round in which both ran.
    fn of(runs: &[Run], goal: Goal) -> Option<Self> {
        let find = |contestant, round| runs.iter().find(|run| run.contestant == contestant && run.round == round);
        let of = runs.iter().filter(|run| run.contestant == goal.of);
        // Of each round by itself: what slows the machine down for a while slows both.
        let rounds: Vec<f64> = of.filter_map(|run| Some(run.rate() / find(goal.to, run.round)?.rate())).collect();
        Some(Self { goal, ratio: Spread::of(rounds.iter().copied())?, rounds })
    }

    /// Whether the median reaches the goal.
    pub(crate) fn is_met(&self) -> bool {
        self.ratio.median >= self.goal.least
    }
}

/// All figures.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) rows: Vec<Row>,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Summary {
    pub(crate) fn of(runs: &[Run]) -> Self {
        let rows = Contestant::ALL.into_iter().filter_map(|contestant| row(runs, contestant)).collect();
        let verdicts = GOALS.into_iter().filter_map(|goal| Verdict::of(runs, goal)).collect();
        Self { rows, verdicts }
    }
}

fn row(runs: &[Run], contestant: Contestant) -> Option<Row> {
    let own = || runs.iter().filter(move |run| run.contestant == contestant);
    let median = |figures: Vec<Option<f64>>| {
        let figures: Option<Vec<f64>> = figures.into_iter().collect();
        Spread::of(figures?.into_iter()).map(|spread| spread.median)
    };
    #[allow(clippy::cast_precision_loss, reason = "a count of transactions")]
    let batch = |run: &Run| (run.measured.transactions > 0).then(|| run.messages() / run.measured.transactions as f64);
    Some(Row {
        contestant,
        rate: Spread::of(own().map(Run::rate))?,
        batch: median(own().map(batch).collect()),
        client: median(own().map(|run| Some(run.micros(run.measured.usage.client))).collect())?,
        database: median(own().map(|run| Some(run.micros(run.measured.usage.database?))).collect()),
        broker: median(own().map(|run| Some(run.micros(run.measured.usage.broker?))).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Usage;

    fn run(contestant: Contestant, round: usize, seconds: f64) -> Run {
        let usage = Usage { client: 0.001, database: Some(0.002), broker: None };
        Run { contestant, round, records: 1_000, measured: Measured { seconds, transactions: 10, usage, peak: 0 } }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0].into_iter()), Some(Spread { least: 1.0, median: 2.0, most: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0].into_iter()).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of([].into_iter()), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The second round is ten times slower for both.
        let runs = [
            run(Contestant::Ours1, 0, 1.0),
            run(Contestant::Hand1, 0, 5.0),
            run(Contestant::Hand1, 1, 50.0),
            run(Contestant::Ours1, 1, 10.0),
        ];
        let summary = Summary::of(&runs);
        assert_eq!(summary.verdicts.len(), 1);
        assert_eq!(summary.verdicts[0].ratio, Spread { least: 5.0, median: 5.0, most: 5.0 });
        assert!(summary.verdicts[0].is_met());
    }

    #[test]
    fn a_goal_can_be_missed() {
        let runs = [run(Contestant::Ours1, 0, 1.0), run(Contestant::Hand1, 0, 3.9)];
        assert!(!Summary::of(&runs).verdicts[0].is_met());
    }

    #[test]
    fn processor_time_is_a_message_s() {
        let summary = Summary::of(&[run(Contestant::Hand1, 0, 1.0)]);
        let row = summary.rows[0];
        assert!((row.client - 1.0).abs() < 1e-9 && row.database.is_some_and(|micros| (micros - 2.0).abs() < 1e-9));
        assert_eq!((row.broker, row.batch), (None, Some(100.0)));
    }
}
