//! A search for the learning rate: the loss while the rate grows.

#[cfg(feature = "curves")]
use crate::curves;
use isograd_core::{Error, Result};

/// The rates of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSearch {
    /// The first rate, greater than 0.
    pub from: f64,
    /// The last rate, greater than the first.
    pub to: f64,
    /// Steps, each with a rate that is larger by the same factor.
    pub steps: usize,
    /// The search ends when the smoothed loss is this many times its minimum.
    pub limit: f64,
}

impl Default for RateSearch {
    /// 100 steps from 1e-6 to 1, up to a loss of four times the minimum.
    fn default() -> RateSearch {
        RateSearch { from: 1e-6, to: 1.0, steps: 100, limit: 4.0 }
    }
}

/// A step of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RatePoint {
    /// The learning rate.
    pub rate: f64,
    /// The loss before the step with this rate.
    pub loss: f64,
    /// The average of the losses so far, with more weight for later ones.
    pub smoothed: f64,
}

/// The losses of growing learning rates. Smith 2017, arXiv 1506.01186.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RateCurve {
    /// The steps.
    pub points: Vec<RatePoint>,
    /// The rate at which the smoothed loss falls most for a factor of the rate; `None` if it never falls.
    pub suggestion: Option<f64>,
}

/// The weight of the average so far in the smoothed loss.
const DECAY: f64 = 0.9;

impl RateSearch {
    pub(crate) fn check(&self) -> Result<()> {
        if !(self.from > 0.0 && self.to > self.from && self.to.is_finite()) {
            let message = format!("rates from {} to {} were given, expected growing ones above 0", self.from, self.to);
            return Err(Error::attr("find_learning_rate", message));
        }
        match self.steps {
            0..3 => {
                Err(Error::attr("find_learning_rate", format!("{} steps were given, expected at least 3", self.steps)))
            }
            _ => Ok(()),
        }
    }

    /// The rate of step `i`.
    pub(crate) fn rate(&self, i: usize) -> f64 {
        self.from * (self.to / self.from).powf(i as f64 / (self.steps - 1) as f64)
    }
}

impl RateCurve {
    pub(crate) fn new(losses: &[(f64, f64)]) -> RateCurve {
        let mut average = 0.0;
        let point = |(i, &(rate, loss)): (usize, &(f64, f64))| {
            average = DECAY * average + (1.0 - DECAY) * loss;
            RatePoint { rate, loss, smoothed: average / (1.0 - DECAY.powi(i as i32 + 1)) }
        };
        let points: Vec<RatePoint> = losses.iter().enumerate().map(point).collect();
        let suggestion = steepest(&points);
        RateCurve { points, suggestion }
    }

    /// True if the last smoothed loss is not finite, or `limit` times the minimum.
    pub(crate) fn is_over(&self, limit: f64) -> bool {
        let lowest = self.points.iter().map(|p| p.smoothed).fold(f64::INFINITY, f64::min);
        let last = self.points.last().map_or(0.0, |p| p.smoothed);
        // A loss that is negative has no multiples above it.
        !last.is_finite() || lowest > 0.0 && last > limit * lowest
    }

    /// The curve as an SVG, over a logarithmic axis of rates, with the suggestion marked. Errors: `Value` if it cannot be drawn.
    #[cfg(feature = "curves")]
    pub fn svg(&self) -> Result<String> {
        curves::rates_svg(self)
    }
}

/// Before the minimum of the smoothed loss.
fn steepest(points: &[RatePoint]) -> Option<f64> {
    let lowest = points.iter().enumerate().min_by(|a, b| a.1.smoothed.total_cmp(&b.1.smoothed))?.0;
    let slope = |w: &[RatePoint]| (w[2].smoothed - w[0].smoothed) / (w[2].rate / w[0].rate).ln();
    let falling = points[..=lowest].windows(3).filter(|w| slope(w) < 0.0);
    falling.min_by(|a, b| slope(a).total_cmp(&slope(b))).map(|w| w[1].rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losses that fall around a rate of 1e-2, and rise from 1e-1 on.
    fn curve() -> RateCurve {
        let search = RateSearch::default();
        let loss = |rate: f64| 2.0 - 1.0 / (1.0 + (1e-2 / rate).powi(2)) + (rate / 0.3).powi(3);
        let losses: Vec<(f64, f64)> = (0..search.steps).map(|i| (search.rate(i), loss(search.rate(i)))).collect();
        RateCurve::new(&losses)
    }

    #[test]
    fn the_suggestion_is_where_the_loss_falls() {
        let rate = curve().suggestion.unwrap();
        assert!((3e-3..0.1).contains(&rate), "{rate}");
        let rising: Vec<(f64, f64)> = (1..20).map(|i| (i as f64, i as f64)).collect();
        assert_eq!(RateCurve::new(&rising).suggestion, None);
    }

    #[test]
    fn the_rates_grow_by_one_factor() {
        let search = RateSearch { from: 1e-3, to: 1e1, steps: 5, limit: 4.0 };
        for (i, expected) in [1e-3, 1e-2, 1e-1, 1.0, 1e1].into_iter().enumerate() {
            assert!((search.rate(i) / expected - 1.0).abs() < 1e-12);
        }
        for wrong in
            [RateSearch { from: 0.0, ..search }, RateSearch { to: 1e-4, ..search }, RateSearch { steps: 2, ..search }]
        {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    #[cfg(feature = "curves")]
    fn the_picture_has_the_losses_and_the_suggestion() {
        let text = curve().svg().unwrap();
        for expected in ["loss", "learning rate", "suggestion", "</svg>"] {
            assert!(text.contains(expected), "no {expected:?}");
        }
        assert!(RateCurve::new(&[]).svg().unwrap().ends_with("</svg>\n"));
        assert!(RateCurve::new(&[(1e-3, f64::NAN)]).svg().unwrap().ends_with("</svg>\n"));
    }
}
