//! The steps of a traced function, one after the other, as values of a graph.
//!
//! A tensor is known by its key: its memory and layout. An op binds the keys of its results to values. An op that has no translation
//! leaves the bindings of the ops that it consists of, which came before it, or of the composites of its fused kernels. A kernel that writes memory makes older bindings of keys in
//! this memory stale. Memory that no kernel has computed from an input of the function is constant.

use crate::export::graph::{Graph, Pair, Value};
use crate::export::ops::{elementwise, translate};
use crate::export::translation::{Refusal, Translation};
use isograd_core::pointwise::Pointwise;
use isograd_core::tape::{Op, Ran, Step};
use isograd_core::{Result, Tensor, TensorKey};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// The tensors of a module by their keys.
pub struct State {
    named: HashMap<TensorKey, (String, Tensor)>,
    memory: HashSet<usize>,
    values: HashMap<TensorKey, Value>,
}

impl State {
    pub fn new(tensors: impl IntoIterator<Item = (String, Tensor)>) -> State {
        let mut state = State { named: HashMap::new(), memory: HashSet::new(), values: HashMap::new() };
        for (name, tensor) in tensors {
            state.memory.insert(tensor.key().memory());
            state.named.entry(tensor.key()).or_insert((name, tensor));
        }
        state
    }
}

/// The last write to memory.
#[derive(Clone, Copy)]
struct Write<'a> {
    step: i64,
    op: &'static str,
    /// The kernel, in both traces.
    ran: Option<[&'a Ran; 2]>,
}

/// What is known at a step.
#[derive(Default)]
pub struct Scope<'a> {
    /// The value of a key, and the step that bound it.
    bindings: HashMap<TensorKey, (Value, i64)>,
    /// The result of the second trace for each bound one of the first.
    partners: HashMap<TensorKey, TensorKey>,
    writes: HashMap<usize, Write<'a>>,
    /// Memory with elements that depend on an input, on the module, or on random numbers.
    of_inputs: HashSet<usize>,
    of_state: HashSet<usize>,
    of_draws: HashSet<usize>,
    constants: HashMap<TensorKey, Value>,
}

impl<'a> Scope<'a> {
    pub fn new(inputs: impl IntoIterator<Item = (TensorKey, Value)>, state: &State) -> Scope<'a> {
        let mut scope = Scope { of_state: state.memory.clone(), ..Scope::default() };
        for (key, value) in inputs {
            scope.of_inputs.insert(key.memory());
            scope.bindings.insert(key, (value, -1));
        }
        scope
    }

    fn write(&mut self, step: i64, ran: &'a Ran, other: Option<&'a Ran>) {
        let read: Vec<usize> = ran.inputs.iter().map(|t| t.key().memory()).collect();
        for memory in ran.outputs.iter().map(|t| t.key().memory()) {
            for of in [&mut self.of_inputs, &mut self.of_state, &mut self.of_draws] {
                if read.iter().any(|memory| of.contains(memory)) {
                    of.insert(memory);
                }
            }
            if ran.is_random {
                self.of_draws.insert(memory);
            }
            self.writes.insert(memory, Write { step, op: ran.op, ran: other.map(|other| [ran, other]) });
        }
    }

    /// The value of a key, unless its memory was written since.
    fn bound(&self, key: &TensorKey) -> Option<Value> {
        let &(value, step) = self.bindings.get(key)?;
        let is_fresh = self.writes.get(&key.memory()).is_none_or(|write| write.step < step);
        is_fresh.then_some(value)
    }
}

/// Translates steps to nodes of a graph.
pub struct Exporter {
    pub graph: Graph,
    pub state: State,
    /// A tensor of the module that the function changes, and the op that does.
    pub changed: Option<(String, &'static str)>,
}

impl Exporter {
    /// Takes the steps of the first trace. Those of the second, for another batch size, are matched to them.
    pub fn run<'a>(&mut self, scope: &mut Scope<'a>, steps: [&'a [Step]; 2]) -> Result<()> {
        let others = aligned(steps);
        for (i, (step, other)) in steps[0].iter().zip(others).enumerate() {
            let i = i as i64;
            match (step, other.map(|j| &steps[1][j])) {
                (Step::Kernel(ran), other) => {
                    let other = if let Some(Step::Kernel(other)) = other { Some(other) } else { None };
                    scope.write(i, ran, other);
                    self.note_changes(ran);
                }
                (Step::Op(op), Some(Step::Op(other))) => self.op(scope, i, op, other)?,
                (Step::Op(op), _) => self.bind_failed(scope, i, op, &[], "it is not taken for all batch sizes"),
            }
        }
        Ok(())
    }

    fn note_changes(&mut self, ran: &Ran) {
        for t in &ran.outputs {
            let memory = t.key().memory();
            let name = |(name, tensor): &(String, Tensor)| (tensor.key().memory() == memory).then(|| name.clone());
            if self.state.memory.contains(&memory)
                && self.changed.is_none()
                && let Some(name) = self.state.named.values().find_map(name)
            {
                self.changed = Some((name, ran.op));
            }
        }
    }

    fn op(&mut self, scope: &mut Scope<'_>, i: i64, op: &Op, other: &Op) -> Result<()> {
        let depends = |of: &HashSet<usize>| op.outputs.iter().any(|y| of.contains(&y.key().memory()));
        let is_constant = !depends(&scope.of_inputs) && !depends(&scope.of_state);
        let is_identity = ["pad", "interpolate"].contains(&op.name) && op.inputs[0].key() == op.outputs[0].key();
        if is_constant || is_identity {
            return Ok(());
        }
        let (op, other) = (&with_targets(op), &with_targets(other));
        scope.partners.extend(op.outputs.iter().map(Tensor::key).zip(other.outputs.iter().map(Tensor::key)));
        let inputs: Vec<Value> = op
            .inputs
            .iter()
            .zip(&other.inputs)
            .map(|(a, b)| self.lookup_before(scope, Pair(a, b), i))
            .collect::<Result<_>>()?;
        let mut translation = Translation { graph: &mut self.graph, op, other, inputs: inputs.clone() };
        match translate(&mut translation) {
            Ok(values) => {
                for (y, value) in op.outputs.iter().zip(values) {
                    self.bind(scope, i, y.key(), value);
                }
            }
            Err(Refusal::Absent(why)) => {
                for (y, other) in op.outputs.iter().zip(&other.outputs) {
                    if let Some(value) = self.expanded(scope, Pair(y, other))? {
                        self.bind(scope, i, y.key(), value);
                    }
                }
                self.bind_failed(scope, i, op, &inputs, &why);
            }
            Err(Refusal::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    /// Binds a key, unless the parts of the op have given it a value and the op has not.
    fn bind(&mut self, scope: &mut Scope<'_>, i: i64, key: TensorKey, value: Value) {
        let has_better =
            !self.graph.is_sound(value) && scope.bound(&key).is_some_and(|known| self.graph.is_sound(known));
        if !has_better {
            scope.bindings.insert(key, (value, i));
        }
    }

    fn bind_failed(&mut self, scope: &mut Scope<'_>, i: i64, op: &Op, inputs: &[Value], why: &str) {
        let operands: Vec<String> = op.inputs.iter().map(|t| format!("{} {}", t.dtype(), t.shape())).collect();
        let value = self.graph.failed(format!("{} of {}: {why}", op.name, operands.join(", ")), inputs);
        for y in &op.outputs {
            self.bind(scope, i, y.key(), value);
        }
    }

    /// The value of a tensor that step `i` reads. The kernels of an op come before the op itself: one that changes its operand in place
    /// reads what was there before.
    fn lookup_before(&mut self, scope: &mut Scope<'_>, pair: Pair<'_>, i: i64) -> Result<Value> {
        let key = pair.0.key();
        if let (Some(&(value, step)), Some(write)) = (scope.bindings.get(&key), scope.writes.get(&key.memory()))
            && write.step == i - 1
            && step < i - 1
        {
            return Ok(value);
        }
        self.lookup(scope, pair)
    }

    /// The value of a tensor.
    pub fn lookup(&mut self, scope: &mut Scope<'_>, pair: Pair<'_>) -> Result<Value> {
        let key = pair.0.key();
        if let Some(value) = scope.bound(&key) {
            if scope.partners.get(&key).is_some_and(|partner| *partner != pair.1.key()) {
                let message =
                    format!("which ops compute {} {} depends on the batch size", pair.0.dtype(), pair.0.shape());
                return Ok(self.graph.failed(message, &[]));
            }
            return Ok(value);
        }
        let (shape, write) = (format!("{} {}", pair.0.dtype(), pair.0.shape()), scope.writes.get(&key.memory()));
        if let (true, Some(write)) = (scope.bindings.contains_key(&key), write) {
            return Ok(self.graph.failed(format!("{}: it changes a tensor {shape} in place", write.op), &[]));
        }
        if let Some((name, tensor)) = self.state.named.get(&key) {
            let (name, tensor) = (name.clone(), tensor.clone());
            return Ok(*self.state.values.entry(key).or_insert_with(|| self.graph.state(&name, &tensor)));
        }
        if let Some(value) = self.expanded(scope, pair)? {
            return Ok(value);
        }
        let (memory, write) = (key.memory(), scope.writes.get(&key.memory()));
        let op = write.map_or("a view", |write| write.op);
        if scope.of_draws.contains(&memory) {
            let message =
                format!("{op}: it draws random numbers, {shape}; call `eval` of the module before the export");
            return Ok(self.graph.failed(message, &[]));
        }
        if scope.of_inputs.contains(&memory) {
            return Ok(self.graph.failed(format!("{op}: ONNX has no such op, with the result {shape}"), &[]));
        }
        if let Some(&known) = scope.constants.get(&key) {
            return Ok(known);
        }
        let value = self.constant(pair)?;
        scope.constants.insert(key, value);
        Ok(value)
    }

    /// A constant, whose extents may depend on the batch size if its elements are the same there.
    fn constant(&mut self, Pair(a, b): Pair<'_>) -> Result<Value> {
        if a.shape() == b.shape() {
            if !a.is_same_memory_or_equal(b)? {
                let message = format!("a constant {} {} depends on the batch size", a.dtype(), a.shape());
                return Ok(self.graph.failed(message, &[]));
            }
            return Ok(self.graph.constant(a));
        }
        let mut part = a.clone();
        for d in (0..a.rank()).filter(|&d| a.dims()[d] != b.dims()[d]) {
            part = part.narrow(d as isize, 0, 1.min(part.dims()[d]))?;
        }
        let fits = |t: &Tensor| -> Result<bool> { Ok(part.broadcast_to(t.shape())?.to_bytes()? == t.to_bytes()?) };
        if part.numel() == 0 || !fits(a)? || !fits(b)? {
            let message = format!("a constant {} {} depends on the batch size", a.dtype(), a.shape());
            return Ok(self.graph.failed(message, &[]));
        }
        let part = self.graph.constant(&part);
        let extents = self.graph.extents(&Pair(a, b).dims())?;
        Ok(self.graph.node("Expand", &[part, extents], &[]))
    }

    /// The value of a tensor that a fused kernel wrote last, computed by the ops of the kernel's composite. `None` if the tensor has a value, or
    /// if they give it none.
    fn expanded(&mut self, scope: &mut Scope<'_>, Pair(y, _): Pair<'_>) -> Result<Option<Value>> {
        let key = y.key();
        let is_bound = scope.bound(&key).is_some_and(|known| self.graph.is_sound(known));
        let Some(&Write { step, ran: Some(ran), .. }) = scope.writes.get(&key.memory()) else { return Ok(None) };
        let is_changed = |x: &Tensor| scope.writes.get(&x.key().memory()).is_some_and(|write| write.step >= step);
        let Some(output) = ran[0].outputs.iter().position(|own| own.key() == key) else { return Ok(None) };
        if is_bound || ran[0].fused.is_none() || ran[0].inputs.iter().any(is_changed) {
            return Ok(None);
        }
        let (Ok((first, steps)), Ok((second, others))) = (ran[0].expanded(), ran[1].expanded()) else {
            return Ok(None);
        };
        let (Some(Some(a)), Some(Some(b))) = (first.get(output), second.get(output)) else { return Ok(None) };
        let mut keys = Vec::new();
        for (a, b) in ran[0].inputs.iter().zip(&ran[1].inputs) {
            keys.push((a.key(), self.lookup(scope, Pair(a, b))?));
        }
        let is_unsound = keys.iter().any(|(_, value)| !self.graph.is_sound(*value));
        // What was there before has no value.
        let before = self.graph.failed(format!("{}: it changes a tensor in place", ran[0].op), &[]);
        keys.extend(ran[0].outputs.iter().map(|own| (own.key(), before)));
        let mut inner = Scope::new(keys, &State::new([]));
        self.run(&mut inner, [&steps, &others])?;
        if !inner.of_inputs.contains(&a.key().memory()) {
            return Ok(None);
        }
        let value = self.lookup(&mut inner, Pair(a, b))?;
        Ok(Some(value).filter(|value| is_unsound || self.graph.is_sound(*value)))
    }
}

/// The op, whose operands include those that it changes in place: the first ones of an `inout` row.
fn with_targets(op: &Op) -> Cow<'_, Op> {
    if !elementwise::row(op).is_some_and(Pointwise::is_inout) {
        return Cow::Borrowed(op);
    }
    let mut own = op.clone();
    own.inputs = op.outputs.iter().chain(&op.inputs).cloned().collect();
    Cow::Owned(own)
}

trait SameElements {
    fn is_same_memory_or_equal(&self, other: &Tensor) -> Result<bool>;
}

impl SameElements for Tensor {
    fn is_same_memory_or_equal(&self, other: &Tensor) -> Result<bool> {
        Ok(self.key() == other.key() || self.to_bytes()? == other.to_bytes()?)
    }
}

/// For each step of the first trace, the step of the second that does the same. The traces differ where an op takes more steps for a
/// larger batch.
fn aligned([a, b]: [&[Step]; 2]) -> Vec<Option<usize>> {
    let is_alike = |i: usize, j: usize| match (&a[i], &b[j]) {
        (Step::Kernel(x), Step::Kernel(y)) => x.op == y.op && x.inputs.len() == y.inputs.len(),
        (Step::Op(x), Step::Op(y)) => {
            let ranks = |op: &Op| op.inputs.iter().chain(&op.outputs).map(Tensor::rank).collect::<Vec<_>>();
            x.name == y.name && x.inputs.len() == y.inputs.len() && ranks(x) == ranks(y)
        }
        _ => false,
    };
    let least = a.len().min(b.len());
    let first = (0..least).take_while(|&i| is_alike(i, i)).count();
    let last = (0..least - first).take_while(|&k| is_alike(a.len() - 1 - k, b.len() - 1 - k)).count();
    let mut found: Vec<Option<usize>> = (0..first).map(Some).collect();
    found.extend(common(a.len() - first - last, b.len() - first - last, |i, j| is_alike(first + i, first + j), first));
    found.extend((0..last).map(|k| Some(b.len() - last + k)));
    found
}

/// A longest common subsequence of `n` and `m` steps, for each of the n the number of its partner, counted from `first`.
fn common(n: usize, m: usize, is_alike: impl Fn(usize, usize) -> bool, first: usize) -> Vec<Option<usize>> {
    // lengths[i][j]: of the steps from i and from j on.
    let mut lengths = vec![vec![0u32; m + 1]; n + 1];
    for i in (0..n).rev() {
        for j in (0..m).rev() {
            lengths[i][j] = match is_alike(i, j) {
                true => lengths[i + 1][j + 1] + 1,
                false => lengths[i + 1][j].max(lengths[i][j + 1]),
            };
        }
    }
    let (mut found, mut i, mut j) = (vec![None; n], 0, 0);
    while i < n && j < m {
        if is_alike(i, j) && lengths[i][j] == lengths[i + 1][j + 1] + 1 {
            found[i] = Some(first + j);
            (i, j) = (i + 1, j + 1);
        } else if lengths[i + 1][j] >= lengths[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    found
}
