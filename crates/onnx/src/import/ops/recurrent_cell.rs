//! One step of a recurrent network, with all the options that ONNX has.

use super::recurrent::Direction;
use crate::import::call::{Call, unsupported, wrong};
use isograd_core::ops::Nonlinearity;
use isograd_core::{Result, Tensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lstm,
    Gru,
    Rnn,
}

/// An activation with its numbers.
#[derive(Clone, Debug, PartialEq)]
struct Function {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

/// The cell of a direction.
pub struct Cell {
    pub kind: Kind,
    functions: Vec<Function>,
    clip: Option<f64>,
    couples: bool,
    resets_after: bool,
    has_peepholes: bool,
}

impl Function {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    fn of(&self, x: &Tensor) -> Result<Tensor> {
        let (alpha, beta) = (|default: f64| self.alpha.unwrap_or(default), |default: f64| self.beta.unwrap_or(default));
        match self.name.to_lowercase().as_str() {
            "relu" => x.relu(),
            "tanh" => x.tanh(),
            "sigmoid" => x.sigmoid(),
            "affine" => x.mul_scalar(alpha(1.0))?.add_scalar(beta(0.0)),
            "leakyrelu" => x.leaky_relu(alpha(0.01)),
            "thresholdedrelu" => x.threshold(alpha(1.0), 0.0),
            "scaledtanh" => x.mul_scalar(beta(1.0))?.tanh()?.mul_scalar(alpha(1.0)),
            "hardsigmoid" => x.hardsigmoid_with(alpha(0.2), beta(0.5)),
            "elu" => x.elu(alpha(1.0)),
            "softsign" => x.softsign(),
            "softplus" => x.softplus(1.0, 20.0),
            other => unsupported(format!("the activation {other:?}")),
        }
    }
}

impl Cell {
    /// The cell of direction `d`.
    pub fn of(c: &Call<'_>, kind: Kind, d: usize) -> Result<Cell> {
        let defaults: &[&str] = match kind {
            Kind::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Kind::Gru => &["Sigmoid", "Tanh"],
            Kind::Rnn => &["Tanh"],
        };
        let attributes = &c.node.attributes;
        let names = attributes.texts("activations")?;
        let number = |name: &str, k: usize| Ok(attributes.floats(name)?.and_then(|all| all.get(k).copied()));
        let function = |i: usize| {
            let k = d * defaults.len() + i;
            let name = match names {
                None => defaults[i].to_string(),
                Some(names) => match names.get(k) {
                    Some(name) => name.clone(),
                    None => {
                        return wrong(format!(
                            "activations is {names:?}, expected {} for each direction",
                            defaults.len()
                        ));
                    }
                },
            };
            Ok(Function { name, alpha: number("activation_alpha", k)?, beta: number("activation_beta", k)? })
        };
        Ok(Cell {
            kind,
            functions: (0..defaults.len()).map(function).collect::<Result<_>>()?,
            clip: attributes.float("clip")?,
            couples: c.flag("input_forget")?,
            resets_after: c.flag("linear_before_reset")?,
            has_peepholes: kind == Kind::Lstm && c.given(7).is_some(),
        })
    }

    /// True if it is the cell of our ops.
    pub fn is_ours(&self) -> bool {
        let is = |i: usize, name: &str| self.functions[i].is(name);
        let are_ours = match self.kind {
            Kind::Lstm => is(0, "Sigmoid") && is(1, "Tanh") && is(2, "Tanh") && !self.couples && !self.has_peepholes,
            Kind::Gru => is(0, "Sigmoid") && is(1, "Tanh") && self.resets_after,
            Kind::Rnn => is(0, "Tanh") || is(0, "Relu"),
        };
        are_ours && self.clip.is_none()
    }

    pub fn nonlinearity(&self) -> Nonlinearity {
        if self.functions[0].is("Relu") { Nonlinearity::Relu } else { Nonlinearity::Tanh }
    }

    /// Function `i` of a sum, which is limited before.
    fn activated(&self, i: usize, sum: &Tensor) -> Result<Tensor> {
        match self.clip {
            Some(limit) => self.functions[i].of(&sum.clamp(Some((-limit).into()), Some(limit.into()))?),
            None => self.functions[i].of(sum),
        }
    }

    /// The hidden state and the cell state after a step. Other kinds than LSTM have no cell state.
    pub fn step(&self, x: &Tensor, h: &Tensor, c: &Tensor, direction: &Direction) -> Result<(Tensor, Tensor)> {
        match self.kind {
            Kind::Lstm => self.lstm(x, h, c, direction),
            Kind::Gru => Ok((self.gru(x, h, direction)?, c.clone())),
            Kind::Rnn => {
                let [a, b] = products(x, h, direction)?;
                Ok((self.activated(0, &a.add(&b)?)?, c.clone()))
            }
        }
    }

    fn lstm(&self, x: &Tensor, h: &Tensor, c: &Tensor, direction: &Direction) -> Result<(Tensor, Tensor)> {
        let [a, b] = products(x, h, direction)?;
        let (sums, width) = (a.add(&b)?, h.dims()[1]);
        let gate = |k: usize| sums.narrow(1, k * width, width);
        // The peepholes are those of i, o and f.
        let seen = |k: usize, sum: Tensor, c: &Tensor| match &direction.peepholes {
            Some(p) => sum.add(&p.narrow(0, k * width, width)?.mul(c)?),
            None => Ok(sum),
        };
        let i = self.activated(0, &seen(0, gate(0)?, c)?)?;
        let f = if self.couples { i.rsub_scalar(1.0)? } else { self.activated(0, &seen(2, gate(2)?, c)?)? };
        let new_c = f.mul(c)?.add(&i.mul(&self.activated(1, &gate(3)?)?)?)?;
        let o = self.activated(0, &seen(1, gate(1)?, &new_c)?)?;
        Ok((o.mul(&self.functions[2].of(&new_c)?)?, new_c))
    }

    fn gru(&self, x: &Tensor, h: &Tensor, direction: &Direction) -> Result<Tensor> {
        let [a, b] = products(x, h, direction)?;
        let width = h.dims()[1];
        let gate = |t: &Tensor, k: usize| t.narrow(1, k * width, width);
        let z = self.activated(0, &gate(&a, 0)?.add(&gate(&b, 0)?)?)?;
        let r = self.activated(0, &gate(&a, 1)?.add(&gate(&b, 1)?)?)?;
        let of_state = if self.resets_after {
            r.mul(&gate(&b, 2)?)?
        } else {
            let w = direction.hidden.narrow(0, 2 * width, width)?;
            let bias = direction.biases.as_ref().map(|[_, bias]| bias.narrow(0, 2 * width, width)).transpose()?;
            r.mul(h)?.linear(&w, bias.as_ref())?
        };
        let new = self.activated(1, &gate(&a, 2)?.add(&of_state)?)?;
        z.rsub_scalar(1.0)?.mul(&new)?.add(&z.mul(h)?)
    }
}

/// The products of the input and of the hidden state, with their biases.
fn products(x: &Tensor, h: &Tensor, direction: &Direction) -> Result<[Tensor; 2]> {
    let [a, b] = match &direction.biases {
        Some([a, b]) => [Some(a), Some(b)],
        None => [None, None],
    };
    Ok([x.linear(&direction.input, a)?, h.linear(&direction.hidden, b)?])
}
