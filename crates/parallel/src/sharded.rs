//! An optimizer whose states are distributed over the ranks: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion
//! parameter models", arXiv:1910.02054, stage 1.

use crate::Group;
use isograd_core::collective::Collective;
use isograd_core::{DType, Error, Result, Tensor, no_grad};
use isograd_nn::optim::Scaling;
use isograd_nn::{Module, Optimizer, StateDict, Visitor, grad_norm};

const OP: &str = "sharded_optimizer";

/// The parameters of one rank, with their names in the whole model.
struct Part(Vec<(String, Tensor)>);

impl Module for Part {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.iter().for_each(|(name, t)| visitor.part(name, t));
    }
}

/// An optimizer `O` of which every rank has the states of some parameters only. It steps those, and all ranks then get the new values.
///
/// Gradients are the same on all ranks, as [`DataParallel`](crate::DataParallel) makes them, and the steps are those of `O` for all
/// parameters. The state of [`state_dict`](Optimizer::state_dict) is that of `O` for the whole model, on every rank: it fits any number
/// of ranks, and `O` alone. Every rank must ask for it at once.
pub struct ShardedOptimizer<O> {
    group: Group,
    /// The optimizer of this rank's parameters; none if there are more ranks than parameters.
    own: O,
    /// All parameters, and the rank that steps each.
    parameters: Vec<(String, Tensor, usize)>,
}

impl<O: Optimizer> ShardedOptimizer<O> {
    /// An optimizer for the parameters of `model`. `make` makes that of a part of them, which has their names in `model`; the parameters
    /// are in one group. Errors: `Value` if there are more ranks than parameters.
    pub fn new(
        model: &(impl Module + ?Sized),
        group: &Group,
        make: impl FnOnce(&dyn Module) -> O,
    ) -> Result<ShardedOptimizer<O>> {
        let named = model.named_parameters();
        if named.len() < group.size() {
            let message = format!("{} parameters for {} ranks, expected one for each", named.len(), group.size());
            return Err(Error::value(OP, message));
        }
        let owners = owners(&named, group.size());
        let parameters: Vec<(String, Tensor, usize)> =
            named.into_iter().zip(owners).map(|((name, t), owner)| (name, t, owner)).collect();
        let of_rank = parameters.iter().filter(|(.., owner)| *owner == group.rank());
        let part = Part(of_rank.map(|(name, t, _)| (name.clone(), t.clone())).collect());
        Ok(ShardedOptimizer { group: group.clone(), own: make(&part), parameters })
    }

    /// Gives every rank the values of all parameters, each from the rank that has stepped it.
    fn exchange(&self) -> Result<()> {
        no_grad(|| {
            for rank in 0..self.group.size() {
                for part in self.parts(rank) {
                    let flat: Vec<Tensor> =
                        part.iter().map(|t| t.detach().reshape(t.numel())).collect::<Result<_>>()?;
                    let flat = Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)?;
                    let new = self.group.run(Collective::Broadcast(rank), &flat)?;
                    if rank == self.group.rank() {
                        continue;
                    }
                    let mut at = 0;
                    for t in part {
                        t.copy_(&new.narrow(0, at, t.numel())?.reshape(t.shape())?)?;
                        at += t.numel();
                    }
                }
            }
            Ok(())
        })
    }

    /// The parameters of a rank, separately for each dtype.
    fn parts(&self, rank: usize) -> Vec<Vec<&Tensor>> {
        let of_rank = || self.parameters.iter().filter(move |(.., owner)| *owner == rank).map(|(_, t, _)| t);
        let parts = DType::ALL.map(|dtype| of_rank().filter(|t| t.dtype() == dtype).collect::<Vec<_>>());
        parts.into_iter().filter(|part| !part.is_empty()).collect()
    }
}

/// The rank of each parameter: the largest go first, each to the rank with the fewest elements.
fn owners(parameters: &[(String, Tensor)], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(parameters[*i].1.numel()));
    let (mut owners, mut elements) = (vec![0; parameters.len()], vec![(0usize, 0usize); ranks]);
    for i in order {
        // Ranks without elements count parameters, so that none stays without.
        let least = (0..ranks).min_by_key(|rank| elements[*rank]).unwrap_or(0);
        owners[i] = least;
        elements[least].0 += parameters[i].1.numel();
        elements[least].1 += 1;
    }
    owners
}

impl<O: Optimizer> Optimizer for ShardedOptimizer<O> {
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        let norm = if self.own.clips_by_norm() { Some(self.norm(scaling)?) } else { None };
        match (scaling, norm) {
            (Some(scaling), Some(norm)) => {
                let Scaling { inv_scale, found_inf, .. } = scaling;
                let (inv_scale, found_inf) = (inv_scale.clone(), found_inf.clone());
                self.own.step_scaled(Some(&Scaling { inv_scale, found_inf, norm: Some(norm) }))?;
            }
            (None, Some(norm)) => {
                let scalar = |value: f64| Tensor::full((), value, DType::F32, norm.device());
                let (inv_scale, found_inf) = (scalar(1.0)?, scalar(0.0)?);
                self.own.step_scaled(Some(&Scaling { inv_scale, found_inf, norm: Some(norm) }))?;
            }
            (scaling, None) => self.own.step_scaled(scaling)?,
        }
        self.zero_grad();
        self.exchange()
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.iter().map(|(_, t, _)| t.clone()).collect()
    }

    fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.own.set_lr(lr)
    }

    fn learning_rate(&self) -> f64 {
        self.own.learning_rate()
    }

    fn grad_norm(&self) -> Option<Tensor> {
        self.own.grad_norm()
    }

    fn clips_by_norm(&self) -> bool {
        self.own.clips_by_norm()
    }

    fn state_dict(&self) -> Result<StateDict> {
        let own = self.own.state_dict()?;
        self.check_groups(&own)?;
        let device = &self.parameters[0].1.device().clone();
        let encoded: Vec<u8> = own.iter().map(|(name, t)| encode(name, t)).collect::<Result<Vec<_>>>()?.concat();
        let mut state = StateDict::new();
        for (rank, bytes) in self.group.gather_bytes("states of the optimizer", &encoded)?.iter().enumerate() {
            if rank == self.group.rank() {
                state.extend(own.clone());
            } else {
                decode(bytes, device, &mut state)?;
            }
        }
        let all: Vec<i64> = (0..self.parameters.len() as i64).collect();
        state.insert(MEMBERS.into(), Tensor::from_slice(&all, all.len(), device)?);
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        self.check_groups(state)?;
        let others: Vec<String> = self
            .parameters
            .iter()
            .filter(|(.., owner)| *owner != self.group.rank())
            .map(|(name, ..)| format!("{name}."))
            .collect();
        let own_names: Vec<String> = self
            .parameters
            .iter()
            .filter(|(.., owner)| *owner == self.group.rank())
            .map(|(name, ..)| format!("{name}."))
            .collect();
        let belongs = |name: &str| {
            // The longest matching parameter decides, where one name begins with another.
            let longest =
                |names: &[String]| names.iter().filter(|own| name.starts_with(&***own)).map(String::len).max();
            longest(&others) <= longest(&own_names)
        };
        let mut own: StateDict =
            state.iter().filter(|(name, _)| belongs(name)).map(|(name, t)| (name.clone(), t.clone())).collect();
        if own.contains_key(MEMBERS) {
            let count = own_names.len();
            let device = self.parameters[0].1.device();
            own.insert(MEMBERS.into(), Tensor::from_vec((0..count as i64).collect(), count, device)?);
        }
        self.own.load_state_dict(&own)
    }
}

/// The indices of the parameters of the only group, in a state.
const MEMBERS: &str = "group.0.params";

impl<O: Optimizer> ShardedOptimizer<O> {
    /// The norm of all gradients before scaling. With a scaler, the gradients are divided first, as it would do.
    fn norm(&self, scaling: Option<&Scaling>) -> Result<Tensor> {
        match scaling.and_then(|scaling| scaling.norm.clone()) {
            Some(norm) => Ok(norm),
            None => grad_norm(&self.parameters(), 2.0),
        }
    }

    /// Errors: `Unsupported` if a state has more than one group of parameters.
    fn check_groups(&self, state: &StateDict) -> Result<()> {
        match state.keys().find(|name| name.starts_with("group.1.")) {
            Some(_) => Err(Error::unsupported(OP, "the optimizer has several groups of parameters, expected one")),
            None => Ok(()),
        }
    }
}

/// A named tensor as bytes: the lengths of a head and of the elements, the head, the elements.
fn encode(name: &str, t: &Tensor) -> Result<Vec<u8>> {
    let dims: Vec<String> = t.dims().iter().map(usize::to_string).collect();
    let head = format!("{name}\n{}\n{}", t.dtype(), dims.join(","));
    let body = t.to_bytes()?;
    let lengths = [head.len() as u64, body.len() as u64].map(u64::to_le_bytes);
    Ok([lengths.as_flattened(), head.as_bytes(), &body].concat())
}

/// Adds the tensors of [`encode`] to a state.
fn decode(mut bytes: &[u8], device: &isograd_core::Device, state: &mut StateDict) -> Result<()> {
    let damaged = || Error::backend(OP, "another rank's states are damaged");
    while let Some((lengths, rest)) = bytes.split_first_chunk::<16>() {
        let (head, body) = lengths.split_at(8);
        let length = |word: &[u8]| word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word) as usize);
        let (head, rest) = rest.split_at_checked(length(head)).ok_or_else(damaged)?;
        let (body, rest) = rest.split_at_checked(length(body)).ok_or_else(damaged)?;
        let head = std::str::from_utf8(head).map_err(|_| damaged())?;
        let [name, dtype, dims] = head.split('\n').collect::<Vec<_>>().try_into().map_err(|_| damaged())?;
        let dims = dims.split(',').filter(|dim| !dim.is_empty()).map(str::parse).collect::<Result<Vec<usize>, _>>();
        let t = Tensor::from_bytes(body, dims.map_err(|_| damaged())?, dtype.parse()?, device)?;
        state.insert(name.to_string(), t);
        bytes = rest;
    }
    Ok(())
}
