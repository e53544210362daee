//! One row over many sets of tensors, such as an optimizer's step of all parameters, and casts of many tensors.

use crate::backend::Kernel;
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::List;
use crate::ops::elementwise::in_place::{check_row, check_update, update_for};
use crate::ops::{row_like, run_elementwise};
use crate::pointwise::Pointwise;
use crate::tape::{Gradient, Gradients, Record};
use crate::tensor::Attributes;
use crate::{DType, Error, Result, Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// An `inout` row over sets of tensors, in one launch. Inputs: for each set its own inputs, then its numbers; after the last set
/// the shared inputs. Outputs: the targets of each set. The operands of a set have the same number of elements, which is not 0.
/// Numbers and shared inputs have one element. No set reads or writes a tensor that another set writes. All sets have the dtypes of
/// the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    /// The row.
    pub row: Pointwise,
    /// The number of shared inputs.
    pub shared: usize,
    /// The number of `numbers` of a set.
    pub numbers: usize,
    /// The row's attributes.
    pub attributes: Vec<f64>,
}

/// [`Each`] without writing the last `kept` operands that the row changes. They are the first of a set's own inputs. An additional
/// last output `[sets, kept]`, in the accumulation dtype, gets the Euclidean norms of their would-be values.
#[derive(Clone, Debug, PartialEq)]
pub struct EachNorms {
    /// The row and its operands.
    pub each: Each,
    /// The number of operands that are not written.
    pub kept: usize,
}

/// Casts in one launch. Inputs: float tensors of one dtype. Outputs: one of another float dtype for each, with as many elements, which is
/// not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastEach;

impl Each {
    /// The results of the row for each set. The last `kept` results are not written.
    fn results(&self, inputs: &[&Tensor], before: &[&Tensor], kept: usize) -> Result<Vec<Vec<Tensor>>> {
        let written = self.row.outputs() - kept;
        let (own, shared) = inputs.split_at(inputs.len() - self.shared);
        let each = self.row.inputs() - written - self.shared;
        let sets = before.len().checked_div(written).unwrap_or(own.len() / each.max(1));
        let one = |set: usize| {
            let (read, numbers) = own[set * each..][..each].split_at(each - self.numbers);
            let targets = before[set * written..][..written].iter().chain(&read[..kept]);
            let targets: Vec<Tensor> = targets.map(|&t| t.clone()).collect();
            let shape = targets[0].shape();
            let numbers = numbers.iter().chain(shared).map(|t| t.reshape(())?.broadcast_to(shape));
            let inputs = read[kept..].iter().map(|t| t.reshape(shape)).chain(numbers).collect::<Result<Vec<_>>>()?;
            row_like(self.row, &inputs, &targets, &self.attributes)
        };
        (0..sets).map(one).collect()
    }
}

impl Fused for Each {
    type Inputs<T> = List<T>;
    type Outputs<T> = List<T>;

    fn name(&self) -> &'static str {
        "each"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.row)
    }

    fn composite(&self, inputs: List<&Tensor>, before: List<&Tensor>) -> Result<List<Option<Tensor>>> {
        Ok(self.results(&inputs, &before, 0)?.into_iter().flatten().map(Some).collect())
    }
}

impl Fused for EachNorms {
    type Inputs<T> = List<T>;
    type Outputs<T> = List<T>;

    fn name(&self) -> &'static str {
        "each_norms"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.each.row)
    }

    fn composite(&self, inputs: List<&Tensor>, before: List<&Tensor>) -> Result<List<Option<Tensor>>> {
        let results = self.each.results(&inputs, &before, self.kept)?;
        let (mut found, mut norms) = (List::default(), Vec::new());
        for mut result in results {
            let kept = result.split_off(result.len() - self.kept);
            norms.extend(kept.iter().map(|t| t.l2_norm(..)).collect::<Result<Vec<_>>>()?);
            found.extend(result.into_iter().map(Some));
        }
        found.push(Some(Tensor::stack(&norms.iter().collect::<Vec<_>>(), 0)?));
        Ok(found)
    }
}

impl Fused for CastEach {
    type Inputs<T> = List<T>;
    type Outputs<T> = List<T>;

    fn name(&self) -> &'static str {
        "cast_each"
    }

    fn composite(&self, inputs: List<&Tensor>, _before: List<&Tensor>) -> Result<List<Option<Tensor>>> {
        Ok(inputs.into_iter().cloned().map(Some).collect())
    }
}

/// [`cast`](Tensor::cast) of each float tensor to a float dtype that it does not have. Together they are one op, which casts all gradients when
/// the last of them is known. Some devices run it in one launch. Errors: `Dtype`, `Device`.
pub fn cast_each(tensors: &[&Tensor], dtype: DType) -> Result<Vec<Tensor>> {
    let outputs = casts(&tensors.iter().map(|&x| (x, dtype)).collect::<Vec<_>>())?;
    let dtypes: Vec<DType> = tensors.iter().map(|x| x.dtype()).collect();
    Record::new("cast", tensors).stateless().rule(outputs, move |t| {
        let given = |i: usize| t.dy_of(i).filter(|_| t.needs(i)).map(|dy| (dy, dtypes[i]));
        let given: Vec<_> = (0..dtypes.len()).map(given).collect();
        let found: Vec<_> = given.iter().copied().flatten().collect();
        let found = if t.creates_graph() {
            found.into_iter().map(|(dy, dtype)| dy.cast(dtype)).collect::<Result<_>>()?
        } else {
            casts(&found)?
        };
        let mut found = found.into_iter();
        let one = |given: &Option<_>| given.and_then(|_| found.next()).map_or(Gradient::ABSENT, Gradient::from);
        Ok(given.iter().map(one).collect::<Gradients>())
    })
}

/// The values of tensors in other dtypes, outside of the tape.
fn casts(tensors: &[(&Tensor, DType)]) -> Result<Vec<Tensor>> {
    let op = "cast";
    let make =
        |&(x, dtype): &(&Tensor, DType)| Ok(Tensor::allocate(op, x.shape(), dtype, x.device())?.ordered_as(&[x]));
    let made: Vec<Tensor> = tensors.iter().map(make).collect::<Result<_>>()?;
    let is_simple = |(x, y): &(&Tensor, &Tensor)| {
        x.layout().is_dense() && x.layout().strides() == y.layout().strides() && has_kernel::<CastEach>(x)
    };
    let pairs = tensors.iter().map(|(x, _)| *x).zip(&made).filter(|(x, _)| x.numel() > 0);
    let (simple, others): (Vec<_>, Vec<_>) = pairs.partition(is_simple);
    for group in by_dtypes(simple, |(x, y)| smallvec![x.dtype(), y.dtype()]) {
        let (inputs, outputs): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        run_fused(op, &CastEach, &inputs, &outputs)?;
    }
    for (x, y) in others {
        run_elementwise(op, Kernel::Cast, &[x], &[y], Attributes::default())?;
    }
    Ok(made)
}

/// A set of tensors that [`update_each_`] updates together.
pub struct Update<'a> {
    /// The tensors that are changed, in the row's order.
    pub targets: Vec<&'a Tensor>,
    /// The set's own inputs.
    pub inputs: Vec<&'a Tensor>,
    /// Inputs of rank 0. In the row they stand between `inputs` and the shared inputs.
    pub numbers: Vec<&'a Tensor>,
}

/// [`update_`](crate::ops::update_) of every set, in order. Shared inputs, of rank 0, follow the set's own inputs. Some devices run all
/// sets with the same dtypes in one launch.
///
/// Errors: as [`update_`](crate::ops::update_) for any of the sets, before any set has changed. `Shape` if a number or a shared input is
/// not of rank 0.
pub fn update_each_(row: Pointwise, sets: &[Update<'_>], shared: &[&Tensor], floats: &[f64]) -> Result<()> {
    update_each_for(row.name(), row, sets, shared, floats)
}

/// [`update_each_`], with errors of `op`.
pub(crate) fn update_each_for(
    op: &'static str,
    row: Pointwise,
    sets: &[Update<'_>],
    shared: &[&Tensor],
    floats: &[f64],
) -> Result<()> {
    check_numbers(op, sets, shared)?;
    sets.iter().try_for_each(|set| check_update(op, row, &set.targets, &set.all_inputs(shared), floats))?;
    let alone = |set: &Update<'_>| update_for(op, row, &set.targets, &set.all_inputs(shared), floats);
    if !are_apart(sets) {
        return sets.iter().try_for_each(alone);
    }
    let is_simple = |set: &&Update<'_>| set.is_simple(shared);
    let (simple, others): (Vec<_>, Vec<_>) = sets.iter().filter(|s| s.targets[0].numel() > 0).partition(is_simple);
    for group in by_dtypes(simple, |set| set.dtypes()) {
        launch(op, row, &group, shared, floats, None)?;
    }
    others.into_iter().try_for_each(alone)
}

/// [`update_each_`] that leaves some operands unchanged: the last operands that the row changes, if they are the first inputs of a
/// set instead of targets. Returns for each set the norms of their would-be values, of rank 0 and in the set's accumulation dtype.
/// Some devices run all sets with the same dtypes in two launches.
///
/// Errors: as [`update_each_`]. Sets must not overlap.
pub fn update_each_norms_(
    row: Pointwise,
    sets: &[Update<'_>],
    shared: &[&Tensor],
    floats: &[f64],
) -> Result<Vec<Vec<Tensor>>> {
    let op = row.name();
    check_numbers(op, sets, shared)?;
    for set in sets {
        let (changed, read) = set.parts(row);
        set.targets.iter().try_for_each(|target| target.check_in_place(op))?;
        check_row(op, row, &changed, &[read, &set.numbers, shared].concat(), floats)?;
    }
    let is_apart = are_apart(sets);
    let mut found: Vec<Vec<Tensor>> = vec![Vec::new(); sets.len()];
    let mut simple = Vec::new();
    for (i, set) in sets.iter().enumerate() {
        match is_apart && set.is_simple(shared) && set.operands().all(has_kernel::<EachNorms>) {
            true => simple.push((i, set)),
            false => found[i] = norms_alone(op, row, set, shared, floats)?,
        }
    }
    for group in by_dtypes(simple, |(_, set)| set.dtypes()) {
        let kept = row.outputs() - group[0].1.targets.len();
        let first = group[0].1;
        let norms =
            Tensor::allocate(op, &Shape::from([group.len(), kept]), first.acc(shared), first.inputs[0].device())?;
        launch(op, row, &group.iter().map(|(_, set)| *set).collect::<Vec<_>>(), shared, floats, Some(&norms))?;
        for (line, (i, _)) in group.iter().enumerate() {
            let norm = |k| norms.select(0, line as isize)?.select(0, k as isize);
            found[*i] = (0..kept).map(norm).collect::<Result<_>>()?;
        }
    }
    Ok(found)
}

/// The norms of one set. The row runs on copies of the operands that stay unchanged.
fn norms_alone(
    op: &'static str,
    row: Pointwise,
    set: &Update<'_>,
    shared: &[&Tensor],
    floats: &[f64],
) -> Result<Vec<Tensor>> {
    let (changed, read) = set.parts(row);
    let acc = set.acc(shared);
    let copy = |t: &&Tensor| t.detach().cast(acc)?.copy();
    let copies: Vec<Tensor> = changed[set.targets.len()..].iter().map(copy).collect::<Result<_>>()?;
    let targets: Vec<&Tensor> = set.targets.iter().copied().chain(&copies).collect();
    update_for(op, row, &targets, &[read, &set.numbers, shared].concat(), floats)?;
    copies.iter().map(|t| t.l2_norm(..)).collect()
}

fn check_numbers(op: &'static str, sets: &[Update<'_>], shared: &[&Tensor]) -> Result<()> {
    match sets.iter().flat_map(|s| &s.numbers).chain(shared).find(|t| t.rank() != 0) {
        Some(wide) => {
            Err(Error::shape(op, format!("a number or shared input has shape {}, expected rank 0", wide.shape())))
        }
        None => Ok(()),
    }
}

/// Runs sets with the same dtypes in one launch.
fn launch(
    op: &'static str,
    row: Pointwise,
    sets: &[&Update<'_>],
    shared: &[&Tensor],
    floats: &[f64],
    norms: Option<&Tensor>,
) -> Result<()> {
    let own = sets.iter().flat_map(|s| s.inputs.iter().chain(&s.numbers));
    let inputs: Vec<&Tensor> = own.chain(shared).copied().collect();
    let targets: Vec<&Tensor> = sets.iter().flat_map(|s| s.targets.iter()).copied().collect();
    let kept = row.outputs() - sets[0].targets.len();
    let (numbers, attributes) = (sets[0].numbers.len(), floats.to_vec());
    let each = Each { row, shared: shared.len(), numbers, attributes };
    let outputs: Vec<&Tensor> = targets.iter().copied().chain(norms).collect();
    match norms {
        None => run_fused(op, &each, &inputs, &outputs)?,
        Some(_) => run_fused(op, &EachNorms { each, kept }, &inputs, &outputs)?,
    }
    targets.iter().for_each(|t| t.touch());
    Ok(())
}

impl<'a> Update<'a> {
    fn all_inputs(&self, shared: &[&'a Tensor]) -> SmallVec<[&'a Tensor; 8]> {
        self.inputs.iter().chain(&self.numbers).chain(shared).copied().collect()
    }

    /// The operands that the row changes, and the set's own inputs that it only reads.
    fn parts(&self, row: Pointwise) -> (Vec<&'a Tensor>, &[&'a Tensor]) {
        let kept = row.outputs().saturating_sub(self.targets.len()).min(self.inputs.len());
        let (first, read) = self.inputs.split_at(kept);
        (self.targets.iter().chain(first).copied().collect(), read)
    }

    fn operands(&self) -> impl Iterator<Item = &Tensor> {
        self.targets.iter().chain(&self.inputs).copied()
    }

    fn dtypes(&self) -> SmallVec<[DType; 8]> {
        self.operands().chain(self.numbers.iter().copied()).map(Tensor::dtype).collect()
    }

    /// The dtype of the row's arithmetic.
    fn acc(&self, shared: &[&Tensor]) -> DType {
        let is_wide = |t: &Tensor| t.dtype() == DType::F64;
        let numbers = self.numbers.iter().chain(shared).copied();
        if self.operands().chain(numbers).any(is_wide) { DType::F64 } else { DType::F32 }
    }

    /// True if the device's kernel accepts the set's memory layout.
    fn is_simple(&self, shared: &[&Tensor]) -> bool {
        let Some(first) = self.operands().next() else { return false };
        let numbers = self.numbers.iter().chain(shared).copied();
        let [is_row_major, is_last] = [first.is_contiguous(), first.is_channels_last()];
        let has_order = |t: &Tensor| (is_row_major && t.is_contiguous()) || (is_last && t.is_channels_last());
        self.operands().all(|t| t.shape() == first.shape() && has_order(t))
            && self.operands().chain(numbers).all(has_kernel::<Each>)
    }
}

fn by_dtypes<S>(sets: Vec<S>, dtypes: impl Fn(&S) -> SmallVec<[DType; 8]>) -> Vec<Vec<S>> {
    let mut groups: Vec<(SmallVec<[DType; 8]>, Vec<S>)> = Vec::new();
    for set in sets {
        let dtypes = dtypes(&set);
        match groups.iter_mut().find(|(known, _)| *known == dtypes) {
            Some((_, group)) => group.push(set),
            None => groups.push((dtypes, vec![set])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// True if the order of the sets does not matter: no set changes memory that another set reads or changes.
pub(crate) fn are_apart(sets: &[Update<'_>]) -> bool {
    let mut spans = Vec::new();
    for Update { targets, inputs, numbers } in sets {
        spans.extend(targets.iter().map(|t| (t.span(), true)));
        spans.extend(inputs.iter().chain(numbers).map(|t| (t.span(), false)));
    }
    spans.sort_unstable_by_key(|((memory, bytes), _)| (*memory, bytes.start));
    // The ends of the ranges read and changed so far in this memory.
    let (mut last, mut read, mut changed) = (0, 0, 0);
    for ((memory, bytes), is_target) in spans {
        if memory != last {
            (last, read, changed) = (memory, 0, 0);
        }
        if !bytes.is_empty() && (bytes.start < changed || (is_target && bytes.start < read)) {
            return false;
        }
        let end = if is_target { &mut changed } else { &mut read };
        *end = bytes.end.max(*end);
    }
    true
}
