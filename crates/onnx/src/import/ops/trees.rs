//! Ensembles of decision trees, of the domain ai.onnx.ml. All samples go down all trees at once, a level a step, on the device.

use super::ml::{dtype, finished, samples};
use super::{Op, Table};
use crate::import::call::{Call, misshapen, sizes, unsupported, wrong};
use crate::import::value::Value;
use isograd_core::{DType, Result, Tensor};
use std::collections::HashMap;

pub const OPS: Table = &[
    ("TreeEnsembleClassifier", Op::Many(classifier)),
    ("TreeEnsembleRegressor", Op::Tensor(regressor)),
    ("TreeEnsemble", Op::Tensor(ensemble)),
];

/// The comparison of a feature with the value of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AtMost,
    Below,
    AtLeast,
    Above,
    Equal,
    Unequal,
    /// True if the feature is in the set of this number.
    Member(usize),
}

/// The modes by their numbers in `TreeEnsemble`, with their names in the older operators.
const MODES: [(&str, Mode); 6] = [
    ("BRANCH_LEQ", Mode::AtMost),
    ("BRANCH_LT", Mode::Below),
    ("BRANCH_GTE", Mode::AtLeast),
    ("BRANCH_GT", Mode::Above),
    ("BRANCH_EQ", Mode::Equal),
    ("BRANCH_NEQ", Mode::Unequal),
];

/// The places of nodes and leaves of all trees in one list. A leaf leads to itself.
#[derive(Default)]
struct Trees {
    features: Vec<i64>,
    thresholds: Vec<f64>,
    modes: Vec<Mode>,
    /// True if a feature that is NaN takes the branch of true comparisons.
    nan_is_true: Vec<bool>,
    on_true: Vec<i64>,
    on_false: Vec<i64>,
    roots: Vec<i64>,
    sets: Vec<Vec<f64>>,
}

/// The sum of leaves' weights over trees, or another aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

/// The weights of leaves: the place of a leaf, a target and the weight.
type Weights = Vec<(usize, usize, f64)>;

impl Trees {
    fn add(&mut self, mode: Option<Mode>, feature: i64, threshold: f64, nan_is_true: bool) {
        let own = self.features.len() as i64;
        self.features.push(feature);
        self.thresholds.push(threshold);
        self.modes.push(mode.unwrap_or(Mode::AtMost));
        self.nan_is_true.push(nan_is_true);
        self.on_true.push(own);
        self.on_false.push(own);
    }

    /// The most steps from a root to a leaf. Errors: `Attr` for places that do not exist, and nodes that lead to themselves.
    fn depth(&self) -> Result<usize> {
        let count = self.features.len();
        let all = self.on_true.iter().chain(&self.on_false).chain(&self.roots);
        if all.clone().any(|&at| usize::try_from(at).map_or(true, |at| at >= count)) {
            return wrong("a node of a tree leads to one that is not there");
        }
        let mut level: Vec<usize> = self.roots.iter().map(|&at| at as usize).collect();
        for depth in 0..=count {
            level.retain(|&at| self.on_true[at] != at as i64 || self.on_false[at] != at as i64);
            level = level.iter().flat_map(|&at| [self.on_true[at] as usize, self.on_false[at] as usize]).collect();
            level.sort_unstable();
            level.dedup();
            if level.is_empty() {
                return Ok(depth);
            }
        }
        wrong("the nodes of a tree form a cycle")
    }

    /// The leaf `[N trees]` of each sample in each tree.
    fn leaves(&self, x: &Tensor) -> Result<Tensor> {
        let (device, n, trees) = (x.device(), x.dims()[0], self.roots.len());
        let last = self.features.iter().copied().max().unwrap_or(0);
        if self.features.iter().any(|&f| f < 0) || last as usize >= x.dims()[1].max(1) {
            return misshapen(format!("the trees read the feature {last}, the samples are {}", x.shape()));
        }
        let table = |v: &[i64]| Tensor::from_slice(v, v.len(), device);
        let (features, on_true, on_false) = (table(&self.features)?, table(&self.on_true)?, table(&self.on_false)?);
        let thresholds = Tensor::from_slice(&self.thresholds, self.thresholds.len(), device)?.cast(x.dtype())?;
        let flags = |is: &dyn Fn(usize) -> bool| -> Result<Tensor> {
            let all: Vec<bool> = (0..self.modes.len()).map(is).collect();
            Tensor::from_vec(all, self.modes.len(), device)
        };
        let mut modes: Vec<Mode> = Vec::new();
        self.modes.iter().for_each(|mode| {
            if !modes.contains(mode) {
                modes.push(*mode)
            }
        });
        let of_mode = modes.iter().map(|&mode| flags(&|i| self.modes[i] == mode)).collect::<Result<Vec<_>>>()?;
        let tracks_nan = if self.nan_is_true.contains(&true) { Some(flags(&|i| self.nan_is_true[i])?) } else { None };
        let mut at = table(&self.roots)?.broadcast_to([n, trees])?.reshape(n * trees)?;
        for _ in 0..self.depth()? {
            let of = |t: &Tensor| t.index_select(0, &at);
            let v = x.gather(1, &of(&features)?.reshape([n, trees])?)?.reshape(n * trees)?;
            let threshold = of(&thresholds)?;
            let mut holds: Option<Tensor> = None;
            for (mode, is_mode) in modes.iter().zip(&of_mode) {
                let compared = self.compared(*mode, &v, &threshold)?;
                holds = Some(match holds {
                    None => compared,
                    Some(holds) => of(is_mode)?.where_cond(&compared, &holds)?,
                });
            }
            let Some(mut holds) = holds else { break };
            if let Some(tracks_nan) = &tracks_nan {
                holds = holds.logical_or(&v.isnan()?.logical_and(&of(tracks_nan)?)?)?;
            }
            at = holds.where_cond(&of(&on_true)?, &of(&on_false)?)?;
        }
        Ok(at)
    }

    fn compared(&self, mode: Mode, v: &Tensor, threshold: &Tensor) -> Result<Tensor> {
        match mode {
            Mode::AtMost => v.le(threshold),
            Mode::Below => v.lt(threshold),
            Mode::AtLeast => v.ge(threshold),
            Mode::Above => v.gt(threshold),
            Mode::Equal => v.eq(threshold),
            Mode::Unequal => v.ne(threshold),
            Mode::Member(set) => {
                let none = v.isnan()?.logical_and(&v.isnan()?.logical_not()?)?;
                self.sets[set].iter().try_fold(none, |found, &member| found.logical_or(&v.eq_scalar(member)?))
            }
        }
    }

    /// The aggregate `[N, targets]` of the weights of the leaves.
    fn aggregated(&self, x: &Tensor, weights: &Weights, targets: usize, how: Aggregate) -> Result<Tensor> {
        let (n, trees, count) = (x.dims()[0], self.roots.len(), self.features.len());
        if weights.iter().any(|&(_, target, _)| target >= targets) {
            return wrong(format!("a leaf has a weight of a target that is not among {targets}"));
        }
        // A leaf without a weight of a target says nothing about it.
        let none = match how {
            Aggregate::Average | Aggregate::Sum => 0.0,
            Aggregate::Min => f64::INFINITY,
            Aggregate::Max => f64::NEG_INFINITY,
        };
        let mut table = vec![none; count * targets];
        for &(leaf, target, weight) in weights {
            let own = &mut table[leaf * targets + target];
            *own = if own.is_finite() { *own + weight } else { weight };
        }
        let table = Tensor::from_vec(table, [count, targets], x.device())?.cast(x.dtype())?;
        let all = table.index_select(0, &self.leaves(x)?)?.reshape([n, trees, targets])?;
        match how {
            Aggregate::Sum => all.sum(1),
            Aggregate::Average => all.sum(1)?.div_scalar(trees.max(1) as f64),
            Aggregate::Min | Aggregate::Max => {
                let found = if how == Aggregate::Min { all.amin(1)? } else { all.amax(1)? };
                found.isinf()?.where_cond(&found.zeros_like()?, &found)
            }
        }
    }
}

/// A list of numbers of an attribute, or of the tensor that may stand for it.
fn numbers(c: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    let tensor = c.constant(&format!("{name}_as_tensor"))?;
    match (c.node.attributes.floats(name)?, tensor) {
        (Some(list), _) => Ok(list.iter().map(|&v| f64::from(v as f32)).collect()),
        (None, Some(tensor)) => tensor.floats(),
        (None, None) => Ok(Vec::new()),
    }
}

/// The numbers of a tensor that an attribute is.
fn tensor(c: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    c.constant(name)?.map_or(Ok(Vec::new()), |value| value.floats())
}

fn list(c: &Call<'_>, name: &str) -> Result<Vec<i64>> {
    Ok(c.list(name)?.unwrap_or_default())
}

/// The place of each node by its tree and its number there.
type Places = HashMap<(i64, i64), usize>;

/// The trees of the older operators, and the places of their nodes.
fn nodes(c: &Call<'_>) -> Result<(Trees, Places)> {
    let (of, ids) = (list(c, "nodes_treeids")?, list(c, "nodes_nodeids")?);
    let (features, values) = (list(c, "nodes_featureids")?, numbers(c, "nodes_values")?);
    let (on_true, on_false) = (list(c, "nodes_truenodeids")?, list(c, "nodes_falsenodeids")?);
    let modes = c.node.attributes.texts("nodes_modes")?.unwrap_or_default();
    let nan = list(c, "nodes_missing_value_tracks_true")?;
    let count = of.len();
    let lengths = [ids.len(), features.len(), values.len(), on_true.len(), on_false.len(), modes.len()];
    if lengths.iter().any(|&n| n != count) || ![0, count].contains(&nan.len()) {
        return wrong(format!("the lists of {count} nodes have the lengths {lengths:?}"));
    }
    let places: Places = of.iter().copied().zip(ids).zip(0..).collect();
    let mut trees = Trees::default();
    for i in 0..count {
        let mode = MODES.iter().find(|(name, _)| name == &modes[i]).map(|(_, mode)| *mode);
        let is_leaf = modes[i] == "LEAF";
        if mode.is_none() && !is_leaf {
            return wrong(format!("the mode of a node is {:?}", modes[i]));
        }
        let feature = if is_leaf { 0 } else { features[i] };
        trees.add(mode, feature, values[i], nan.get(i).is_some_and(|&nan| nan != 0));
        if !is_leaf {
            // One that is not there is found by `depth`.
            let place = |id: i64| places.get(&(of[i], id)).map_or(-1, |&at| at as i64);
            (trees.on_true[i], trees.on_false[i]) = (place(on_true[i]), place(on_false[i]));
        }
        if i == 0 || !of[..i].contains(&of[i]) {
            trees.roots.push(i as i64);
        }
    }
    Ok((trees, places))
}

/// The weights of the leaves of the older operators, whose attributes begin with `class` or `target`.
fn weights(c: &Call<'_>, kind: &str, places: &Places) -> Result<Weights> {
    let all = |name: &str| list(c, &format!("{kind}_{name}"));
    let (of, nodes, targets) = (all("treeids")?, all("nodeids")?, all("ids")?);
    let weights = numbers(c, &format!("{kind}_weights"))?;
    if [nodes.len(), targets.len(), weights.len()].iter().any(|&n| n != of.len()) {
        return wrong(format!("the lists of {kind} weights have several lengths"));
    }
    let targets = sizes(&targets)?;
    let each = of.into_iter().zip(nodes).zip(targets.into_iter().zip(weights));
    let weight = |(node, (target, weight)): ((i64, i64), (usize, f64))| match places.get(&node) {
        Some(&at) => Ok((at, target, weight)),
        None => wrong(format!("node {} of tree {} has a weight and is not there", node.1, node.0)),
    };
    each.map(weight).collect()
}

/// Scores with the values that they begin with, if there are any.
fn based(c: &Call<'_>, y: Tensor) -> Result<Tensor> {
    let base = numbers(c, "base_values")?;
    match base.len() {
        0 => Ok(y),
        n => y.add(&Tensor::from_vec(base, n, c.device())?.cast(y.dtype())?),
    }
}

fn regressor(c: &Call<'_>) -> Result<Tensor> {
    let (trees, places) = nodes(c)?;
    let targets = sizes(&[c.int("n_targets", 1)?])?[0];
    let how = match c.text("aggregate_function", "SUM")? {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return wrong(format!("the aggregate is {other:?}")),
    };
    let y = trees.aggregated(&samples(c)?, &weights(c, "target", &places)?, targets, how)?;
    finished(c, based(c, y)?)
}

/// The label of the largest score, and all scores. Two classes of which the leaves weigh one have the score of the other as well: the rest to 1
/// of weights that are shares, else the negative.
fn classifier(c: &Call<'_>) -> Result<Vec<Value>> {
    let Some(labels) = c.list("classlabels_int64s")? else { return unsupported("classes whose labels are texts") };
    let ((trees, places), count) = (nodes(c)?, labels.len());
    let weights = weights(c, "class", &places)?;
    let is_one = count == 2 && weights.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let labels = Tensor::from_vec(labels, count, c.device())?;
    let x = samples(c)?;
    if !is_one {
        let scores = based(c, trees.aggregated(&x, &weights, count, Aggregate::Sum)?)?;
        let found = labels.index_select(0, &scores.argmax(-1)?)?;
        return Ok(vec![found.into(), finished(c, scores)?.into()]);
    }
    let are_shares = weights.iter().all(|&(.., weight)| weight >= 0.0);
    let first: Weights = weights.into_iter().map(|(leaf, _, weight)| (leaf, 0, weight)).collect();
    let mut score = trees.aggregated(&x, &first, 1, Aggregate::Sum)?;
    if let Some(base) = numbers(c, "base_values")?.last() {
        score = score.add_scalar(*base)?;
    }
    let is_second = score.gt_scalar(if are_shares { 0.5 } else { 0.0 })?.cast(DType::I64)?.reshape(score.dims()[0])?;
    let other = if are_shares { score.neg()?.add_scalar(1.0)? } else { score.neg()? };
    let scores = Tensor::concat(&[&other, &score], 1)?;
    // Shares are probabilities as they are.
    let scores = if are_shares { scores } else { finished(c, scores)? };
    Ok(vec![labels.index_select(0, &is_second)?.into(), scores.into()])
}

/// The operator that replaces both: nodes and leaves in lists of their own.
fn ensemble(c: &Call<'_>) -> Result<Tensor> {
    let x = c.x(0)?;
    let x = if x.dtype().is_float() { x } else { x.cast(dtype(c))? };
    if x.rank() != 2 {
        return misshapen(format!("the samples are {}, expected [N, features]", x.shape()));
    }
    let (splits, features) = (tensor(c, "nodes_splits")?, list(c, "nodes_featureids")?);
    let modes = c.constant("nodes_modes")?.map_or(Ok(Vec::new()), |value| value.ints())?;
    let (on_true, on_false) = (list(c, "nodes_truenodeids")?, list(c, "nodes_falsenodeids")?);
    let (true_leafs, false_leafs) = (list(c, "nodes_trueleafs")?, list(c, "nodes_falseleafs")?);
    let nan = list(c, "nodes_missing_value_tracks_true")?;
    let (targets, leaf_weights) = (list(c, "leaf_targetids")?, tensor(c, "leaf_weights")?);
    let count = splits.len();
    let lengths = [features.len(), modes.len(), on_true.len(), on_false.len(), true_leafs.len(), false_leafs.len()];
    if lengths.iter().any(|&n| n != count) || ![0, count].contains(&nan.len()) || targets.len() != leaf_weights.len() {
        return wrong(format!("the lists of {count} nodes have the lengths {lengths:?}"));
    }
    let mut trees = Trees { roots: list(c, "tree_roots")?, ..Trees::default() };
    // Sets of members, each up to a NaN, are those of the nodes that ask for one, in their order.
    let members = tensor(c, "membership_values")?;
    trees.sets = members.split(|v| v.is_nan()).map(<[f64]>::to_vec).collect();
    let mut set = 0;
    for i in 0..count {
        let mode = match usize::try_from(modes[i]) {
            Ok(6) => {
                set += 1;
                Mode::Member(set - 1)
            }
            Ok(k) if k < MODES.len() => MODES[k].1,
            _ => return wrong(format!("the mode of a node is {}", modes[i])),
        };
        trees.add(Some(mode), features[i], splits[i], nan.get(i).is_some_and(|&nan| nan != 0));
    }
    if set > trees.sets.len() {
        return wrong(format!("{set} nodes ask for members of sets, and there are {}", trees.sets.len()));
    }
    // Leaves come behind the nodes.
    targets.iter().for_each(|_| trees.add(None, 0, 0.0, false));
    let place = |at: i64, is_leaf: i64| if is_leaf != 0 && at >= 0 { at.saturating_add(count as i64) } else { at };
    for i in 0..count {
        trees.on_true[i] = place(on_true[i], true_leafs[i]);
        trees.on_false[i] = place(on_false[i], false_leafs[i]);
    }
    let how = match c.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return wrong(format!("the aggregate is {other}")),
    };
    let targets = sizes(&targets)?;
    let weights = targets.into_iter().zip(leaf_weights).enumerate().map(|(i, (target, w))| (count + i, target, w));
    let y = trees.aggregated(&x, &weights.collect(), sizes(&[c.int("n_targets", 1)?])?[0], how)?;
    match c.int("post_transform", 0)? {
        0 => Ok(y),
        1 => y.softmax(-1),
        2 => y.sigmoid(),
        other => unsupported(format!("scores after the function {other}")),
    }
}
