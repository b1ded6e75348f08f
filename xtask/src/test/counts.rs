//! How many checks passed, failed and did not run.

use std::{fmt, ops::AddAssign};

/// Numbers of checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Those that passed.
    pub(crate) passed: u64,
    /// Those that failed.
    pub(crate) failed: u64,
    /// Those that did not run.
    pub(crate) skipped: u64,
}

impl Counts {
    /// One check.
    pub(crate) fn one(passed: bool) -> Self {
        Self { passed: u64::from(passed), failed: u64::from(!passed), skipped: 0 }
    }

    /// What a line like `test result: ok. 5 passed; 0 failed; 1 ignored; …` says; none of any other line.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let number = |word: &str| {
            let part = numbers.split(';').find_map(|part| part.trim().strip_suffix(word))?;
            part.trim().parse().ok()
        };
        Some(Self { passed: number("passed")?, failed: number("failed")?, skipped: number("ignored")? })
    }

    /// Whether this is the outcome of a good run: something ran, and nothing failed.
    pub(crate) fn good(self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_harnesses_are_read() {
        let line = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 5, failed: 0, skipped: 1 }));
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.50s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 12, failed: 3, skipped: 0 }));
    }

    #[test]
    fn other_lines_are_not_counted() {
        for line in
            ["test a ... ok", "running 5 tests", "  test result: ok. 1 passed; 0 failed; 0 ignored", "test result: odd"]
        {
            assert_eq!(Counts::of_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_run_without_tests_is_not_good() {
        let mut counts = Counts::default();
        assert!(!counts.good());
        counts += Counts::one(true);
        assert!(counts.good());
        assert_eq!(counts.to_string(), "1 passed, 0 failed");
        counts += Counts { passed: 0, failed: 1, skipped: 2 };
        assert!(!counts.good());
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 2 skipped");
    }
}
