//! The cases of a check: fixed shapes, and drawn ones. A failing drawn case is shrunk.

use crate::compare::{Distance, Miss};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::str::FromStr;

/// The description of a case: a shape and a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeded {
    /// The shape.
    pub shape: Vec<usize>,
    /// The seed.
    pub seed: u64,
}

/// Such as `2x3:7`; `scalar` is the shape of rank 0.
impl fmt::Display for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let shape = if extents.is_empty() { "scalar".to_string() } else { extents.join("x") };
        write!(f, "{shape}:{}", self.seed)
    }
}

impl FromStr for Seeded {
    type Err = String;

    fn from_str(s: &str) -> Result<Seeded, String> {
        let wrong = || format!("{s:?} is no case such as 2x3:7");
        let (shape, seed) = s.split_once(':').ok_or_else(wrong)?;
        let extent = |n: &str| n.parse::<usize>().map_err(|_| wrong());
        let extents = shape.split('x').filter(|_| shape != "scalar").map(extent).collect::<Result<_, _>>();
        Ok(Seeded { shape: extents?, seed: seed.parse().map_err(|_| wrong())? })
    }
}

/// Extents of rank 0 to 4 with at most 24 elements, including 0 and 1.
pub fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let extent = prop_oneof![1 => Just(0usize), 4 => Just(1usize), 8 => 2..5usize];
    prop::collection::vec(extent, 0..5).prop_filter("small", |s| s.iter().product::<usize>() <= 24)
}

/// Runs `check` on `cases` values of a strategy, which are the same in every run. The error is that of the shrunk value of a
/// failure, with this value.
pub fn for_all<S: Strategy>(
    cases: u32,
    seed: u64,
    strategy: &S,
    check: impl Fn(S::Value) -> Result<(), String>,
) -> Result<(), (String, Option<S::Value>)> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let checked = |value| check(value).map_err(TestCaseError::fail);
    runner.run(strategy, checked).map_err(|error| match error {
        TestError::Fail(reason, value) => (reason.message().to_string(), Some(value)),
        TestError::Abort(reason) => (reason.message().to_string(), None),
    })
}

/// The results of the cases of a check.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The number of cases that ran.
    pub cases: usize,
    /// The largest distance, or the distance of the failed case.
    pub worst: Distance,
    /// The case with the largest error in units of its bound, or the failed case.
    pub case: Option<Seeded>,
    /// The reason of the failure.
    pub failure: Option<String>,
}

/// Runs `check` on fixed cases, then on `drawn` ones. Stops at the first failure, which is shrunk if it was drawn.
pub fn tally(fixed: &[Seeded], drawn: u32, seed: u64, check: impl Fn(&Seeded) -> Result<Distance, Miss>) -> Tally {
    let tally = RefCell::new(Tally::default());
    // The distance of the last failure, which is the shrunk one.
    let missed = Cell::new(Distance::default());
    let one = |case: &Seeded| -> Result<(), String> {
        let distance = check(case).map_err(|miss| {
            missed.set(miss.distance);
            miss.why
        })?;
        let mut tally = tally.borrow_mut();
        tally.cases += 1;
        if tally.case.is_none() || distance.bounds > tally.worst.bounds {
            tally.case = Some(case.clone());
        }
        tally.worst = tally.worst.or(distance);
        Ok(())
    };
    let failed = fixed.iter().find_map(|case| one(case).err().map(|why| (why, Some(case.clone()))));
    let failed = failed.or_else(|| {
        let strategy = (shapes(), any::<u64>()).prop_map(|(shape, seed)| Seeded { shape, seed });
        for_all(drawn, seed, &strategy, |case| one(&case)).err()
    });
    let mut tally = tally.into_inner();
    if let Some((why, case)) = failed {
        tally.failure = Some(why);
        tally.case = case;
        tally.worst = missed.get();
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_what_is_read_of_its_text() {
        for text in ["2x3:7", "scalar:0", "0:18446744073709551615"] {
            assert_eq!(text.parse::<Seeded>().unwrap().to_string(), text);
        }
        for wrong in ["", "2x3", "2y3:1", "2x:1", "2:-1", "2:x"] {
            assert!(wrong.parse::<Seeded>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_fails_is_shrunk() {
        let tally = tally(&[], 100, 1, |case| match case.shape.contains(&3) {
            true => Err(Miss { why: "three".into(), distance: Distance { bounds: 2.0, ulps: 3.0 } }),
            false => Ok(Distance { bounds: 0.5, ulps: 1.0 }),
        });
        assert_eq!(tally.failure.as_deref(), Some("three"));
        assert_eq!(tally.case, Some(Seeded { shape: vec![3], seed: 0 }));
        assert_eq!(tally.worst, Distance { bounds: 2.0, ulps: 3.0 });
    }

    #[test]
    fn the_worst_case_is_kept() {
        let fixed = [1, 5, 2].map(|n| Seeded { shape: vec![n], seed: 0 });
        let tally = tally(&fixed, 0, 1, |case| Ok(Distance { bounds: case.shape[0] as f64 / 10.0, ulps: 0.0 }));
        assert_eq!((tally.cases, tally.worst.bounds, tally.case), (3, 0.5, Some(fixed[1].clone())));
    }
}
