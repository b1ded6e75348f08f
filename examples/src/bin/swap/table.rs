//! The table and its verdict. Pure.

use std::{fmt::Write as _, time::Duration};

use comfy_table::{CellAlignment, Table, presets};

use crate::places::Place;

/// What came of the messages over one broker.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) broker: String,
    pub(crate) published: u64,
    pub(crate) delivered: u64,
    pub(crate) duplicates: u64,
    pub(crate) effects: u64,
    /// Payments without an effect.
    pub(crate) missing: u64,
    /// What the subscription still has.
    pub(crate) lag: Option<u64>,
    pub(crate) took: Duration,
    pub(crate) trouble: Option<Trouble>,
}

/// Why there are no figures.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is no such broker here.
    Absent(String),
    /// It did not work.
    Failed(String),
}

impl Row {
    pub(crate) fn absent(place: &Place) -> Self {
        let why = format!("{} is not set", place.variable.unwrap_or_default());
        Self { broker: place.name.clone(), trouble: Some(Trouble::Absent(why)), ..Self::default() }
    }

    pub(crate) fn failed(place: &Place, why: String) -> Self {
        Self { broker: place.name.clone(), trouble: Some(Trouble::Failed(why)), ..Self::default() }
    }

    /// What is wrong with it, if anything is.
    fn wrong(&self) -> Option<String> {
        match &self.trouble {
            Some(Trouble::Absent(_)) => return None,
            Some(Trouble::Failed(why)) => return Some(why.clone()),
            None => {}
        }
        let mut wrong = Vec::new();
        let doubled = (self.effects + self.missing).saturating_sub(self.payments());
        if self.missing > 0 {
            wrong.push(format!("{} lost", self.missing));
        }
        if doubled > 0 {
            wrong.push(format!("{doubled} doubled"));
        }
        if self.lag != Some(0) {
            wrong.push("not everything was worked off".to_owned());
        }
        if self.delivered < self.published {
            wrong.push(format!("{} never handed over", self.published - self.delivered));
        }
        (!wrong.is_empty()).then(|| wrong.join(", "))
    }

    /// Every tenth payment was published twice.
    fn payments(&self) -> u64 {
        self.published * 10 / 11
    }
}

/// The table, the verdict below it, and whether everything is right.
pub(crate) fn shown(rows: &[Row]) -> (String, bool) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["broker", "published", "delivered", "duplicates", "effects", "lag", "seconds", ""]);
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let (mut right, mut wrong, mut absent) = (0, 0, 0);
    let mut failures = String::new();
    for row in rows {
        let dashes = || std::iter::repeat_n("–".to_owned(), 6);
        let (figures, verdict): (Vec<String>, String) = match (&row.trouble, row.wrong()) {
            (Some(Trouble::Absent(why)), _) => {
                absent += 1;
                (dashes().collect(), format!("not here: {why}"))
            }
            (Some(Trouble::Failed(_)), why) => {
                wrong += 1;
                // Too long for a cell. Writing to a string cannot fail.
                write!(failures, "\n{}: {}", row.broker, why.unwrap_or_default()).unwrap_or(());
                (dashes().collect(), "WRONG: see below".to_owned())
            }
            (None, why) => {
                if why.is_some() {
                    wrong += 1;
                } else {
                    right += 1;
                }
                let numbers = [row.published, row.delivered, row.duplicates, row.effects, row.lag.unwrap_or_default()];
                let mut figures: Vec<String> = numbers.iter().map(u64::to_string).collect();
                figures.push(format!("{:.1}", row.took.as_secs_f64()));
                (figures, why.map_or_else(|| "right".to_owned(), |why| format!("WRONG: {why}")))
            }
        };
        table.add_row([vec![row.broker.clone()], figures, vec![verdict]].concat());
    }
    let all_right = wrong == 0 && right > 0;
    let mut text = table.to_string();
    let verdict = if all_right { "each effect once on each of them" } else { "not every effect once" };
    text.push_str(&failures);
    write!(text, "\n{right} brokers right, {wrong} wrong, {absent} not here: {verdict}").unwrap_or(());
    (text, all_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Row {
        Row {
            broker: "kafka".to_owned(),
            published: 110,
            delivered: 112,
            duplicates: 12,
            effects: 100,
            lag: Some(0),
            ..Row::default()
        }
    }

    #[test]
    fn only_right_rows_are_right() {
        assert!(shown(&[good()]).1);
        let rows = [
            (Row { missing: 1, effects: 99, ..good() }, "1 lost"),
            (Row { effects: 101, ..good() }, "1 doubled"),
            (Row { missing: 1, effects: 100, ..good() }, "1 lost, 1 doubled"),
            (Row { lag: Some(3), ..good() }, "not everything was worked off"),
            (Row { delivered: 109, ..good() }, "1 never handed over"),
            (Row { trouble: Some(Trouble::Failed("refused".to_owned())), ..good() }, "refused"),
        ];
        for (row, why) in rows {
            let (text, right) = shown(&[good(), row]);
            assert!(!right && text.contains("WRONG: ") && text.contains(why), "{text}");
        }
    }

    #[test]
    fn absence_is_said_and_proves_nothing() {
        let absent = || Row { trouble: Some(Trouble::Absent("X is not set".to_owned())), ..Row::default() };
        assert!(!shown(&[absent()]).1);
        let (text, right) = shown(&[good(), absent()]);
        assert!(right && text.contains("X is not set") && text.contains("1 not here"), "{text}");
    }
}
