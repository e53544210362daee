//! Muon for the matrices of a model, and AdamW for the rest.

use isograd::nn::{AdamW, Adjust, Module, Muon, Optimizer, Scaling, StateDict};
use isograd::{Result, Tensor};

/// Two optimizers at one rate: Muon's steps are as large as AdamW's.
pub struct Mixed {
    muon: Muon,
    adamw: AdamW,
}

impl Mixed {
    pub fn new(model: &(impl Module + ?Sized)) -> Mixed {
        let all = model.named_parameters().into_iter().map(|(_, t)| t);
        let (matrices, rest): (Vec<Tensor>, Vec<Tensor>) = all.partition(|t| t.rank() > 1);
        let muon = Muon::from_parameters(matrices).adjust(Adjust::MatchRmsAdamW);
        Mixed { muon, adamw: AdamW::from_parameters(rest) }
    }

    pub fn lr(self, lr: f64) -> Mixed {
        Mixed { muon: self.muon.lr(lr), adamw: self.adamw.lr(lr) }
    }
}

impl Optimizer for Mixed {
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        self.muon.step_scaled(scaling)?;
        self.adamw.step_scaled(scaling)
    }

    fn parameters(&self) -> Vec<Tensor> {
        [self.muon.parameters(), self.adamw.parameters()].concat()
    }

    fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.muon.set_lr(lr)?;
        self.adamw.set_lr(lr)
    }

    fn learning_rate(&self) -> f64 {
        self.muon.learning_rate()
    }

    fn grad_norm(&self) -> Option<Tensor> {
        None
    }

    /// The states of both optimizers, under `muon.` and `adamw.`.
    fn state_dict(&self) -> Result<StateDict> {
        let under = |prefix, state: StateDict| state.into_iter().map(move |(name, t)| (format!("{prefix}{name}"), t));
        Ok(under("muon.", self.muon.state_dict()?).chain(under("adamw.", self.adamw.state_dict()?)).collect())
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let of = |prefix| -> StateDict {
            let own = state.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_string(), t.clone())));
            own.collect()
        };
        self.muon.load_state_dict(&of("muon."))?;
        self.adamw.load_state_dict(&of("adamw."))
    }
}
