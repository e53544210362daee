//! A model's layers in a table: what each returns, its parameters, and the memory that they take.

use crate::module::{Item, walk};
use crate::{Called, Forward, ForwardHook, Module};
use isograd_core::{Result, Shape, Tensor, no_grad};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// A part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerSummary {
    /// The name in the model; empty for the model itself.
    pub name: String,
    /// The type's name, without its path.
    pub kind: String,
    /// The number of calls; 0 for a part that does not tell when it runs.
    pub calls: usize,
    /// The shapes of the first call's results.
    pub outputs: Vec<Shape>,
    /// Bytes of the results of all calls.
    pub output_bytes: usize,
    /// Trained elements of this part itself, without those of its parts.
    pub trained: usize,
    /// Frozen elements of this part itself.
    pub frozen: usize,
}

/// The parts of a model, and their sums: see [`summary`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The model itself, and then its parts.
    pub layers: Vec<LayerSummary>,
    /// Trained elements; those of tied parameters count once.
    pub trained: usize,
    /// Frozen elements.
    pub frozen: usize,
    /// Elements of buffers.
    pub buffers: usize,
    /// Bytes of parameters and buffers.
    pub state_bytes: usize,
    /// Bytes of the gradients of all trained parameters.
    pub gradient_bytes: usize,
    /// Bytes of the results of the innermost parts. The backward pass needs them, or others of about their size.
    pub output_bytes: usize,
}

/// The layers of a model with the shapes of their results for an input x, their parameters and their memory. [`Display`](fmt::Display) is a
/// table. The model runs once, in evaluation and outside of the tape, and is left as it was. Shapes are known for parts that tell when they
/// run; see [`ForwardHook`]. Errors: those of the model.
///
/// ```
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # use isograd_nn::{Init, Linear, Sequential, summary};
/// # use isograd_cpu as _;
/// # fn main() -> Result<()> {
/// # let device = Device::cpu()?;
/// # let init = Init::new(&device);
/// let model = Sequential::new().push(Linear::new(64, 32, &init)?).push(Tensor::relu).push(Linear::new(32, 10, &init)?);
/// let summary = summary(&model, &Tensor::zeros((8, 64), DType::F32, &device)?)?;
/// assert_eq!(summary.trained, 64 * 32 + 32 + 32 * 10 + 10);
/// println!("{summary}");
/// # Ok(())
/// # }
/// ```
pub fn summary(model: &(impl Module + Forward + ?Sized), x: &Tensor) -> Result<Summary> {
    Summary::of(model, || model.forward(x))
}

/// The calls of a part: their number, the shapes of the first, and all bytes.
type Calls = (usize, Vec<Shape>, usize);

impl Summary {
    /// [`summary`] for a model with other inputs: `run` calls it.
    pub fn of<O>(model: &(impl Module + ?Sized), run: impl FnOnce() -> Result<O>) -> Result<Summary> {
        let calls: Rc<RefCell<HashMap<String, Calls>>> = Rc::default();
        let kept = calls.clone();
        let hook = ForwardHook::register(model, "*", move |call: &Called<'_>| {
            let mut calls = kept.borrow_mut();
            let (count, shapes, bytes) = calls.entry(call.name.to_string()).or_default();
            if *count == 0 {
                *shapes = call.outputs.iter().map(|t| t.shape().clone()).collect();
            }
            *count += 1;
            *bytes += call.outputs.iter().map(bytes_of).sum::<usize>();
            Ok(None)
        })?;
        evaluating(model, || no_grad(run))?;
        drop(hook);
        let calls = calls.take();
        let modules = model.named_modules();
        let mut layers: Vec<LayerSummary> = modules.into_iter().map(|(name, kind)| layer(name, kind, &calls)).collect();
        let (mut trained, mut frozen, mut gradient_bytes) = (0, 0, 0);
        let parameters = model.named_parameters();
        for (name, t) in &parameters {
            let owner = owner(&layers, name);
            if t.requires_grad() {
                layers[owner].trained += t.numel();
                trained += t.numel();
                gradient_bytes += bytes_of(t);
            } else {
                layers[owner].frozen += t.numel();
                frozen += t.numel();
            }
        }
        let buffers = model.named_buffers();
        let state_bytes = parameters.iter().chain(&buffers).map(|(_, t)| bytes_of(t)).sum();
        let is_inner = |layer: &&LayerSummary| !layers.iter().any(|other| other.calls > 0 && is_within(other, layer));
        let output_bytes = layers.iter().filter(is_inner).map(|layer| layer.output_bytes).sum();
        // A list of parts is none itself.
        let is_shown =
            |l: &LayerSummary| l.name.is_empty() || l.calls > 0 || l.trained + l.frozen > 0 || !is_list(&l.kind);
        layers.retain(is_shown);
        let buffers = buffers.iter().map(|(_, t)| t.numel()).sum();
        Ok(Summary { layers, trained, frozen, buffers, state_bytes, gradient_bytes, output_bytes })
    }
}

fn layer(name: String, kind: &'static str, calls: &HashMap<String, Calls>) -> LayerSummary {
    let (calls, outputs, output_bytes) = calls.get(&name).cloned().unwrap_or_default();
    LayerSummary { name, kind: short(kind), calls, outputs, output_bytes, trained: 0, frozen: 0 }
}

/// The index of the innermost part with a parameter.
fn owner(layers: &[LayerSummary], parameter: &str) -> usize {
    let has = |layer: &LayerSummary| {
        layer.name.is_empty() || parameter.strip_prefix(layer.name.as_str()).is_some_and(|rest| rest.starts_with('.'))
    };
    let owners = (0..layers.len()).filter(|&i| has(&layers[i]));
    owners.max_by_key(|&i| layers[i].name.len()).unwrap_or(0)
}

fn is_within(inner: &LayerSummary, outer: &LayerSummary) -> bool {
    match outer.name.as_str() {
        "" => !inner.name.is_empty(),
        name => inner.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')),
    }
}

fn bytes_of(t: &Tensor) -> usize {
    t.numel() * t.dtype().size()
}

/// A type's name without paths and parameters: `Linear`, `relu`, `closure`.
pub(crate) fn short(kind: &str) -> String {
    let mut depth = 0;
    let is_outside = |c: &char| {
        depth += i32::from(*c == '<') - i32::from(*c == '>');
        depth == 0 && *c != '>'
    };
    let name: String = kind.chars().filter(is_outside).collect();
    name.rsplit("::").next().unwrap_or_default().trim_matches(['{', '}']).to_string()
}

/// True for types that only hold parts, and are never called.
pub(crate) fn is_list(kind: &str) -> bool {
    kind.starts_with('[') || ["Vec", "BTreeMap"].contains(&&*short(kind))
}

/// Runs `f` with the module in evaluation, and then gives each part its mode again.
pub(crate) fn evaluating<R>(model: &(impl Module + ?Sized), f: impl FnOnce() -> R) -> R {
    let mut modes = Vec::new();
    walk(model, &mut |_, item| {
        if let Item::Mode(mode) = item {
            modes.push(mode.is_training());
        }
    });
    model.eval();
    let result = f();
    let mut modes = modes.into_iter();
    walk(model, &mut |_, item| {
        if let Item::Mode(_) = item {
            item.set_training(modes.next().unwrap_or(true));
        }
    });
    result
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["layer", "kind", "output", "trained", "frozen", "results"].map(String::from);
        let rows: Vec<[String; 6]> = std::iter::once(titles).chain(self.layers.iter().map(row)).collect();
        let widths: [usize; 6] =
            std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
        for [name, kind, output, trained, frozen, results] in &rows {
            let [a, b, c, d, e, g] = widths;
            writeln!(f, "{name:a$}  {kind:b$}  {output:c$}  {trained:>d$}  {frozen:>e$}  {results:>g$}")?;
        }
        let (trained, frozen, buffers) = (grouped(self.trained), grouped(self.frozen), grouped(self.buffers));
        writeln!(f, "{trained} trained parameters, {frozen} frozen ones, {buffers} elements of buffers")?;
        let [state, gradients, results] = [self.state_bytes, self.gradient_bytes, self.output_bytes].map(size);
        write!(f, "{state} of parameters and buffers, {gradients} of gradients, {results} of results")
    }
}

fn row(layer: &LayerSummary) -> [String; 6] {
    let outputs: Vec<String> = layer.outputs.iter().map(ToString::to_string).collect();
    let times = if layer.calls > 1 { format!(" x {}", layer.calls) } else { String::new() };
    let output = if outputs.is_empty() { "-".into() } else { outputs.join(", ") + &times };
    let name = if layer.name.is_empty() { "(model)".into() } else { layer.name.clone() };
    let count = |n: usize| if n == 0 { "-".into() } else { grouped(n) };
    let results = if layer.calls == 0 { "-".into() } else { size(layer.output_bytes) };
    [name, layer.kind.clone(), output, count(layer.trained), count(layer.frozen), results]
}

/// `1,234,567`.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let with_comma = |(i, c): (usize, char)| {
        let is_start = i > 0 && (digits.len() - i).is_multiple_of(3);
        is_start.then_some(',').into_iter().chain([c])
    };
    digits.chars().enumerate().flat_map(with_comma).collect()
}

fn size(bytes: usize) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} kB", b / 1e3),
    }
}
