//! Mixtures of experts: hidden layers of which each position takes a few.

use super::linear;
use isograd_core::ops::Order;
use isograd_core::{DType, Error, Result, Tensor, is_in_step};
use isograd_nn::{Forward, Gate, GatedMlp, Init, Layer, Module, called};

/// The extents of a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExpertOptions {
    /// The number of experts.
    pub count: usize,
    /// The experts that a position takes.
    pub taken: usize,
    /// The width of an expert's hidden layer.
    pub hidden: usize,
    /// The width of the hidden layer of an expert that all positions take.
    pub shared: Option<usize>,
    /// True if the weights of the experts that a position takes are divided by their sum.
    pub normalized: bool,
    /// The blocks that have experts: each of this number.
    pub every: usize,
    /// Blocks that have none.
    pub without: Vec<usize>,
}

impl ExpertOptions {
    /// True if a block has experts.
    pub(super) fn are_in(&self, block: usize) -> bool {
        (block + 1).is_multiple_of(self.every) && !self.without.contains(&block)
    }
}

/// Experts with gates: x `[.., E]` to the sum of a few experts' results, by the weights that a router gives them. Fedus et al. 2022, arXiv
/// 2101.03961; Jiang et al. 2024, arXiv 2401.04088.
///
/// Outside of captured steps each expert computes its own rows, for which the host waits for the router. In a captured step few rows gather the
/// weights of their experts, and many are computed by all experts.
#[derive(Debug, Module)]
pub struct Experts {
    /// The router, from the width E to the experts.
    pub gate: Box<dyn Layer>,
    /// From the width to the hidden width, before the function of the gate: `[experts, hidden, E]`.
    pub gate_proj: Tensor,
    /// From the width to the hidden width: `[experts, hidden, E]`.
    pub up_proj: Tensor,
    /// From the hidden width to the width: `[experts, E, hidden]`.
    pub down_proj: Tensor,
    /// The expert that all positions take.
    pub shared_expert: Option<GatedMlp>,
    /// The gate of its result, from the width to 1.
    pub shared_expert_gate: Option<Box<dyn Layer>>,
    #[module(skip)]
    function: Gate,
    #[module(skip)]
    options: ExpertOptions,
}

/// The experts of rows: `[N, k]` (i64), and their weights.
struct Routes {
    experts: Tensor,
    weights: Tensor,
}

impl Experts {
    /// For x of width `width`. Errors: `Attr` for more taken experts than there are, or none.
    pub fn new(width: usize, options: &ExpertOptions, function: Gate, init: &Init) -> Result<Experts> {
        let ExpertOptions { count, taken, hidden, shared, .. } = *options;
        if taken == 0 || taken > count {
            return Err(Error::attr("experts", format!("a position takes {taken} of {count} experts")));
        }
        let weight = |shape: [usize; 3]| init.normal(shape, 0.0, super::STD);
        Ok(Experts {
            gate: linear(width, count, false, init)?,
            gate_proj: weight([count, hidden, width])?,
            up_proj: weight([count, hidden, width])?,
            down_proj: weight([count, width, hidden])?,
            shared_expert: shared.map(|hidden| GatedMlp::new(width, hidden, function, init)).transpose()?,
            shared_expert_gate: shared.map(|_| linear(width, 1, false, init)).transpose()?,
            function,
            options: options.clone(),
        })
    }

    fn routes(&self, rows: &Tensor) -> Result<Routes> {
        let shares = self.gate.forward(rows)?.cast(DType::F32)?.softmax(-1)?;
        let (weights, experts) = shares.topk(self.options.taken, -1, Order::Descending)?;
        let weights = if self.options.normalized { weights.div(&weights.sum_keepdim(-1)?)? } else { weights };
        Ok(Routes { experts, weights: weights.cast(rows.dtype())? })
    }

    /// The results `[N, E]` of rows `[N, E]`, each expert with its own rows.
    fn by_expert(&self, rows: &Tensor, Routes { experts, weights }: &Routes) -> Result<Tensor> {
        let taken = self.options.taken;
        let chosen = experts.flatten(0, 1)?.to_vec::<i64>()?;
        let mut slots = (0..chosen.len()).collect::<Vec<_>>();
        slots.sort_by_key(|&slot| chosen[slot]);
        let index = |values: Vec<i64>| Tensor::from_vec(values.clone(), values.len(), rows.device());
        let mut results = Vec::new();
        for of_one in slots.chunk_by(|&a, &b| chosen[a] == chosen[b]) {
            let expert = chosen[of_one[0]] as isize;
            let x = rows.index_select(0, &index(of_one.iter().map(|&slot| (slot / taken) as i64).collect())?)?;
            let of = |weight: &Tensor, x: &Tensor| x.linear(&weight.select(0, expert)?, None);
            results
                .push(of(&self.down_proj, &self.function.apply(&of(&self.gate_proj, &x)?, &of(&self.up_proj, &x)?)?)?);
        }
        let mut places = vec![0; slots.len()];
        slots.iter().enumerate().for_each(|(place, &slot)| places[slot] = place as i64);
        let results = Tensor::concat(&results.iter().collect::<Vec<_>>(), 0)?.index_select(0, &index(places)?)?;
        let results = results.reshape((rows.dims()[0], taken, rows.dims()[1]))?;
        results.mul(&weights.unsqueeze(2)?)?.sum(1)
    }

    /// The same with weights that are gathered for each row.
    fn by_row(&self, rows: &Tensor, Routes { experts, weights }: &Routes) -> Result<Tensor> {
        let (n, taken) = (rows.dims()[0], self.options.taken);
        let of = |weight: &Tensor, x: &Tensor| weight.index_select(0, &experts.flatten(0, 1)?)?.matmul(x);
        let x = rows.unsqueeze(1)?.expand((n, taken, rows.dims()[1]))?.reshape((n * taken, rows.dims()[1], 1))?;
        let hidden = self.function.apply(&of(&self.gate_proj, &x)?, &of(&self.up_proj, &x)?)?;
        let results = of(&self.down_proj, &hidden)?.reshape((n, taken, rows.dims()[1]))?;
        results.mul(&weights.unsqueeze(2)?)?.sum(1)
    }

    /// The same with all experts, of which most have the weight 0.
    fn by_all(&self, rows: &Tensor, Routes { experts, weights }: &Routes) -> Result<Tensor> {
        let none = Tensor::zeros((rows.dims()[0], self.options.count), weights.dtype(), rows.device())?;
        let weights = none.scatter(1, experts, weights)?.t()?.unsqueeze(2)?;
        let of = |weight: &Tensor, x: &Tensor| x.matmul(&weight.transpose(1, 2)?);
        let x = rows.unsqueeze(0)?;
        let hidden = self.function.apply(&of(&self.gate_proj, &x)?, &of(&self.up_proj, &x)?)?;
        of(&self.down_proj, &hidden)?.mul(&weights)?.sum(0)
    }
}

impl Forward for Experts {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let rows = x.flatten(0, -2)?;
            let routes = self.routes(&rows)?;
            let n = rows.dims()[0];
            let y = match n {
                0 => rows.clone(),
                _ if !is_in_step() => self.by_expert(&rows, &routes)?,
                _ if n * self.options.taken <= self.options.count => self.by_row(&rows, &routes)?,
                _ => self.by_all(&rows, &routes)?,
            };
            let y = match (&self.shared_expert, &self.shared_expert_gate) {
                (Some(shared), Some(gate)) => y.add(&gate.forward(&rows)?.sigmoid()?.mul(&shared.forward(&rows)?)?)?,
                _ => y,
            };
            y.reshape(x.shape())
        })
    }
}
