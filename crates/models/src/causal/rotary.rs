//! Rotary positions: the angles of each pair of a head's elements, and their changes for contexts that are longer than in the first training.

use crate::hub::Config;
use isograd_core::{Error, Result};
use serde_json::{Value, json};
use std::f64::consts::TAU;

/// Rotary positions of the heads of a [`CausalLm`](crate::CausalLm). The angle of pair i grows from one position to the next by its rate,
/// `base^(-2i / R)`, in which R is the number of elements that are rotated.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rotary {
    /// The base of the rates.
    pub base: f64,
    /// The change of the rates.
    pub scaling: RotaryScaling,
    /// The share of a head's elements that are rotated, the first ones.
    pub part: f64,
}

/// A change of the rates.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RotaryScaling {
    /// Rates stay.
    #[default]
    Default,
    /// Rates are divided by a factor. Chen et al. 2023, arXiv 2306.15595.
    Linear(f64),
    /// The base grows with the length of a sequence that has more positions than the context. A [`CausalLm`](crate::CausalLm) has no such sequences,
    /// so that its rates stay.
    Dynamic(f64),
    /// As in LLaMA 3.1: slow rates are divided by a factor, fast ones stay, and between them there is a smooth transition.
    Llama3 {
        /// The divisor of slow rates.
        factor: f64,
        /// Rates with fewer turns in the first context are slow.
        low: f64,
        /// Rates with more turns in the first context are fast.
        high: f64,
        /// The context of the first training.
        context: usize,
    },
    /// Slow rates are divided by a factor, fast ones stay, with a line over the pairs between them. Peng et al. 2023, arXiv 2309.00071.
    Yarn {
        /// The divisor of slow rates.
        factor: f64,
        /// Sines and cosines are multiplied by it; `0.1 ln(factor) + 1` if absent.
        attention: Option<f64>,
        /// Rates with more turns in the first context are fast; 32 in most models.
        fast: f64,
        /// Rates with fewer turns in the first context are slow; 1 in most models.
        slow: f64,
        /// True if the pairs between which the line is are whole numbers.
        truncate: bool,
        /// The context of the first training.
        context: usize,
    },
    /// Each rate has divisors of its own, for sequences within the context of the first training and for longer ones. Ding et al. 2024, arXiv
    /// 2402.13753.
    LongRope {
        /// The divisors within the context of the first training.
        short: Vec<f64>,
        /// The divisors beyond it.
        long: Vec<f64>,
        /// Sines and cosines are multiplied by it.
        attention: f64,
        /// The context of the first training.
        context: usize,
    },
}

/// Rates, and the factor of sines and cosines.
pub(super) struct Rates {
    pub rates: Vec<f64>,
    pub factor: f64,
}

/// The keys of files.
const THETA: &str = "rope_theta";
const PART: &str = "partial_rotary_factor";
const CONTEXT: &str = "original_max_position_embeddings";
/// The keys that every kind of rotary positions may have, and those of two kinds.
const KNOWN: [&str; 8] = ["rope_type", "type", THETA, PART, "factor", "low_freq_factor", "high_freq_factor", CONTEXT];
const OF_YARN: [&str; 6] = ["attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"];
const OF_LONGROPE: [&str; 3] = ["attention_factor", "short_factor", "long_factor"];

impl Rotary {
    /// All elements are rotated, and rates stay.
    pub fn new(base: f64) -> Rotary {
        Rotary { base, scaling: RotaryScaling::Default, part: 1.0 }
    }

    /// The context of the first training, if sequences that are longer have other rates.
    pub(super) fn short_context(&self) -> Option<usize> {
        match self.scaling {
            RotaryScaling::LongRope { context, .. } => Some(context),
            _ => None,
        }
    }

    /// The rates of heads of so many elements, for sequences within the first context or for longer ones. Errors: `Attr`.
    pub(super) fn rates(&self, width: usize, is_long: bool) -> Result<Rates> {
        let rotated = (width as f64 * self.part) as usize;
        if !(self.part > 0.0 && self.part <= 1.0) || rotated == 0 || !rotated.is_multiple_of(2) {
            let message = format!("{rotated} of the {width} elements of a head are rotated, expected an even number");
            return Err(Error::attr("causal_lm", message));
        }
        let numbers = [self.base].into_iter().chain(self.scaling.numbers());
        if let Some(number) = numbers.into_iter().find(|v| !v.is_finite() || *v <= 0.0) {
            let message = format!("a number of rotary positions is {number}, expected numbers above 0");
            return Err(Error::attr("causal_lm", message));
        }
        let pairs = rotated / 2;
        let rate = |i: usize| self.base.powf(-2.0 * i as f64 / rotated as f64);
        let rates = |f: &dyn Fn(usize, f64) -> f64| (0..pairs).map(|i| f(i, rate(i))).collect::<Vec<_>>();
        Ok(match &self.scaling {
            RotaryScaling::Default | RotaryScaling::Dynamic(_) => Rates { rates: rates(&|_, rate| rate), factor: 1.0 },
            RotaryScaling::Linear(factor) => Rates { rates: rates(&|_, rate| rate / factor), factor: 1.0 },
            &RotaryScaling::Llama3 { factor, low, high, context } => {
                let scaled = |_, rate: f64| {
                    let turns = context as f64 * rate / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    rate * (kept + (1.0 - kept) / factor)
                };
                Rates { rates: rates(&scaled), factor: 1.0 }
            }
            &RotaryScaling::Yarn { factor, attention, fast, slow, truncate, context } => {
                // The pair whose rate makes so many turns in the first context.
                let pair = |turns: f64| rotated as f64 * (context as f64 / (turns * TAU)).ln() / (2.0 * self.base.ln());
                let (low, high) = (pair(fast), pair(slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
                let span = if low == high { 0.001 } else { high - low };
                let scaled = |i, rate| {
                    let slow = ((i as f64 - low) / span).clamp(0.0, 1.0);
                    rate / factor * slow + rate * (1.0 - slow)
                };
                Rates { rates: rates(&scaled), factor: attention.unwrap_or(magnitude(factor, 1.0)) }
            }
            RotaryScaling::LongRope { short, long, attention, .. } => {
                let divisors = if is_long { long } else { short };
                if divisors.len() != pairs {
                    let message = format!("{} divisors of rates, expected {pairs}", divisors.len());
                    return Err(Error::attr("causal_lm", message));
                }
                Rates { rates: rates(&|i, rate| rate / divisors[i]), factor: *attention }
            }
        })
    }

    /// The rotary positions of an object of a file, whose numbers may be in `outer`. Errors: `Format`.
    pub(super) fn read(config: &Config, outer: &Config, base: f64, context: usize) -> Result<Rotary> {
        let base = config.positive_or(THETA, outer.positive_or(THETA, base)?)?;
        let part = config.positive_or(PART, outer.positive_or(PART, 1.0)?)?;
        Ok(Rotary { base, part, scaling: RotaryScaling::read(config, outer, context)? })
    }
}

/// The factor of sines and cosines for a divisor of rates.
fn magnitude(factor: f64, coefficient: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * coefficient * factor.ln() + 1.0 }
}

impl RotaryScaling {
    /// The numbers that are above 0.
    fn numbers(&self) -> Vec<f64> {
        match self {
            RotaryScaling::Default => Vec::new(),
            RotaryScaling::Linear(factor) | RotaryScaling::Dynamic(factor) => vec![*factor],
            RotaryScaling::Llama3 { factor, .. } => vec![*factor],
            RotaryScaling::Yarn { factor, attention, fast, slow, context, .. } => {
                vec![*factor, attention.unwrap_or(1.0), *fast, *slow, *context as f64]
            }
            RotaryScaling::LongRope { short, long, attention, .. } => {
                short.iter().chain(long).chain([attention]).copied().collect()
            }
        }
    }

    fn read(config: &Config, outer: &Config, longest: usize) -> Result<RotaryScaling> {
        let Some(kind) = config.get("rope_type").or(config.get("type")) else {
            return match config.keys().find(|key| ![THETA, PART].contains(key)) {
                Some(key) => Err(config.wrong("rope_type", &Value::Null, format!("a type that has {key}"))),
                None => Ok(RotaryScaling::Default),
            };
        };
        let further: &[&str] = match kind.as_str() {
            Some("yarn") => &OF_YARN,
            Some("longrope" | "su") => &OF_LONGROPE,
            _ => &[],
        };
        let unknown = config.keys().find(|key| !KNOWN.contains(key) && !further.contains(key));
        if let Some((key, value)) = unknown.and_then(|key| Some((key, config.get(key)?))) {
            return Err(config.wrong(key, value, "none: this network has no such option of its positions"));
        }
        let number = |key: &str| match config.get(key) {
            Some(_) => config.positive_or(key, 0.0),
            None => Err(config.wrong(key, &Value::Null, format!("a number for {kind}"))),
        };
        let optional = |key: &str| config.get(key).map(|_| config.positive_or(key, 0.0)).transpose();
        let context = || match config.count_or(CONTEXT, outer.count_or(CONTEXT, None)?)? {
            Some(context) => Ok(context),
            None => config.count(CONTEXT),
        };
        match kind.as_str() {
            Some("default") => Ok(RotaryScaling::Default),
            Some("linear") => Ok(RotaryScaling::Linear(number("factor")?)),
            Some("dynamic") => Ok(RotaryScaling::Dynamic(number("factor")?)),
            Some("llama3") => {
                let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
                if low >= high {
                    return Err(config.wrong("low_freq_factor", &json!(low), format!("less than {high}")));
                }
                Ok(RotaryScaling::Llama3 { factor: number("factor")?, low, high, context: context()? })
            }
            Some("yarn") => {
                let factor = number("factor")?;
                let of_both = optional("mscale")?.zip(optional("mscale_all_dim")?);
                let of_both = of_both.map(|(of, all)| magnitude(factor, of) / magnitude(factor, all));
                Ok(RotaryScaling::Yarn {
                    factor,
                    attention: optional("attention_factor")?.or(of_both),
                    fast: optional("beta_fast")?.unwrap_or(32.0),
                    slow: optional("beta_slow")?.unwrap_or(1.0),
                    truncate: config.flag_or("truncate", true)?,
                    context: context()?,
                })
            }
            // The second name is that of the first files of Phi 3.
            Some("longrope" | "su") => {
                let context = context()?;
                let factor = optional("factor")?.unwrap_or(longest as f64 / context as f64);
                let attention = (1.0 + factor.max(1.0).ln() / (context as f64).ln()).sqrt();
                Ok(RotaryScaling::LongRope {
                    short: config.floats("short_factor")?,
                    long: config.floats("long_factor")?,
                    attention: optional("attention_factor")?.unwrap_or(attention),
                    context,
                })
            }
            _ => Err(config.wrong("rope_type", kind, "default, linear, dynamic, llama3, yarn or longrope")),
        }
    }

    /// The object of a file.
    pub(super) fn config(&self) -> Value {
        match self {
            RotaryScaling::Default => Value::Null,
            RotaryScaling::Linear(factor) => json!({ "rope_type": "linear", "factor": factor }),
            RotaryScaling::Dynamic(factor) => json!({ "rope_type": "dynamic", "factor": factor }),
            RotaryScaling::Llama3 { factor, low, high, context } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                CONTEXT: context,
            }),
            RotaryScaling::Yarn { factor, attention, fast, slow, truncate, context } => json!({
                "rope_type": "yarn",
                "factor": factor,
                "attention_factor": attention,
                "beta_fast": fast,
                "beta_slow": slow,
                "truncate": truncate,
                CONTEXT: context,
            }),
            RotaryScaling::LongRope { short, long, attention, context } => json!({
                "rope_type": "longrope",
                "short_factor": short,
                "long_factor": long,
                "attention_factor": attention,
                CONTEXT: context,
            }),
        }
    }
}
