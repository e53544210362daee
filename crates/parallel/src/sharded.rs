//! An optimizer whose states are distributed over the ranks: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion
//! parameter models", arXiv:1910.02054, stage 1.

use crate::Group;
use crate::states::{Groups, decode, encode, parameter_of};
use isograd_core::collective::Collective;
use isograd_core::{DType, Error, Result, Tensor, no_grad};
use isograd_nn::optim::Scaling;
use isograd_nn::{Module, Optimizer, StateDict, Visitor, grad_norm};

const OP: &str = "sharded_optimizer";

/// The parameters of one rank, with their names in the whole model.
pub(crate) struct NamedParameters(pub Vec<(String, Tensor)>);

impl Module for NamedParameters {
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
    groups: Groups,
}

impl<O: Optimizer> ShardedOptimizer<O> {
    /// An optimizer for the parameters of `model`. `make` makes that of a part of them, which has their names in `model`; it is called for
    /// the whole model too, whose optimizer only says which groups of parameters there are. Errors: `Value` if there are more ranks than
    /// parameters.
    pub fn new(
        model: &(impl Module + ?Sized),
        group: &Group,
        make: impl Fn(&dyn Module) -> O,
    ) -> Result<ShardedOptimizer<O>> {
        let named = model.named_parameters();
        if named.len() < group.size() {
            let message = format!("{} parameters for {} ranks, expected one for each", named.len(), group.size());
            return Err(Error::value(OP, message));
        }
        let owners = owners(&named, group.size());
        let parameters: Vec<(String, Tensor, usize)> =
            named.into_iter().zip(owners).map(|((name, t), owner)| (name, t, owner)).collect();
        let named = |(name, t, _): &(String, Tensor, usize)| (name.clone(), t.clone());
        let whole = make(&NamedParameters(parameters.iter().map(named).collect()));
        let of_rank = parameters.iter().filter(|(.., owner)| *owner == group.rank());
        let own = make(&NamedParameters(of_rank.map(named).collect()));
        let numbers = (0..).zip(&parameters).filter(|(_, (.., owner))| *owner == group.rank());
        let numbers: Vec<i64> = numbers.map(|(number, _)| number).collect();
        let groups = Groups::new(OP, &whole.options()?, &own.options()?, &numbers)?;
        Ok(ShardedOptimizer { group: group.clone(), own, parameters, groups })
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

    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.own)
    }

    fn state_dict(&self) -> Result<StateDict> {
        let device = &self.parameters[0].1.device().clone();
        let own = self.own.state_dict()?;
        let own: Vec<(String, Tensor)> =
            own.into_iter().filter_map(|(name, t)| Some((self.groups.whole_name(&name)?, t))).collect();
        let encoded: Vec<u8> = own.iter().map(|(name, t)| encode(name, t)).collect::<Result<Vec<_>>>()?.concat();
        let mut state = StateDict::new();
        for (rank, bytes) in self.group.gather_bytes("states of the optimizer", &encoded)?.iter().enumerate() {
            match rank == self.group.rank() {
                true => state.extend(own.clone()),
                false => state.extend(decode(OP, bytes, device)?),
            }
        }
        self.groups.add_members(&mut state, device)?;
        Ok(state)
    }

    /// The options of the whole model's groups. Every rank must ask for them at once.
    fn options(&self) -> Result<StateDict> {
        let mut state = self.state_dict()?;
        state.retain(|name, _| Groups::is_option(name));
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let mut own = self.groups.part_options(OP, state, self.parameters[0].1.device())?;
        let names: Vec<String> = self.parameters.iter().map(|(name, ..)| name.clone()).collect();
        // The optimizer refuses names that are nobody's.
        let is_own = |name: &str| match parameter_of(name, &names) {
            Some((i, _)) => self.parameters[i].2 == self.group.rank(),
            None => !Groups::is_option(name),
        };
        own.extend(state.iter().filter(|(name, _)| is_own(name)).map(|(name, t)| (name.clone(), t.clone())));
        self.own.load_state_dict(&own)
    }
}

impl<O: Optimizer> ShardedOptimizer<O> {
    /// The norm of all gradients before scaling. With a scaler, the gradients are divided first, as it would do.
    fn norm(&self, scaling: Option<&Scaling>) -> Result<Tensor> {
        match scaling.and_then(|scaling| scaling.norm.clone()) {
            Some(norm) => Ok(norm),
            None => grad_norm(&self.parameters(), 2.0),
        }
    }
}
