//! Convolutions over meshes: the features of each row's neighbours, side by side, times a weight.
//!
//! A table names the neighbours of each row, which is an edge or a vertex. The convolution is linear in its input and in its weight. As
//! for [`conv`](crate::ops::conv), the gradients of each of its three maps are the other two.

use crate::check::{check_device, check_float, check_index, check_same, describe};
use crate::fused::{Fused, has_kernel, of_sizes, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::conv::Names;
use crate::ops::conv::columns::is_finite;
use crate::ops::sparse::csr::row_of_positions;
use crate::ops::sparse::{Csr, EntryLists};
use crate::ops::{gradients, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::{Gradients, Saved, record};
use crate::tensor::Attributes;
use crate::{DType, Error, Kind, Result, Shape, Tensor, autocast, no_autocast};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The neighbours of each row of a mesh `[V, S]`, where a row is an edge or a vertex, and -1 an absent neighbour.
///
/// The inverse table, of the rows that have a row as a neighbour, is made on the device when the gradient of an input first needs it, which
/// waits for the device, and is kept. Changes in place of the tensor from which the table was made do not affect it. Clones share it.
#[derive(Clone)]
pub struct Neighbors(Arc<Tables>);

struct Tables {
    /// As given, i64.
    listed: Table,
    /// With each row as its own first neighbour.
    with_itself: OnceLock<Table>,
}

#[derive(Clone)]
struct Table {
    /// `[V, S]`, i64.
    neighbors: Tensor,
    inverse: Arc<OnceLock<Inverse>>,
}

/// The rows that have a row as a neighbour.
struct Inverse {
    /// `[V, S]`, i64: the row v with `neighbors[v, s] = u`, for each u and s. If there are several, it is V + i, and list i of `joined`
    /// has them; -1 if there is none.
    rows: Tensor,
    /// The lists of several rows, as a pattern `[lists, V]`.
    joined: Option<Csr>,
}

impl Neighbors {
    /// A copy of a table `[V, S]`, i64 or i32. Errors: `Shape`, `Dtype`; `Index` for a neighbour that is neither -1 nor in `0..V`.
    pub fn new(table: &Tensor) -> Result<Neighbors> {
        let op = "neighbors";
        check_index(op, table)?;
        let &[rows, _] = table.dims() else {
            return Err(Error::shape(op, format!("{}, expected rows and neighbours [V, S]", describe(&[table]))));
        };
        let (row, size) = (Pointwise::NeighborIndex, [rows as i64]);
        let found = pointwise_one(op, row, &[table], Attributes::ints(&size), table.shape(), DType::I64);
        let neighbors = found.map_err(|e| match e.kind() {
            Kind::Value => Error::index(op, format!("a neighbour is neither -1 nor in 0..{rows}: {}", e.message())),
            _ => e,
        })?;
        Ok(Neighbors(Arc::new(Tables { listed: Table::new(neighbors), with_itself: OnceLock::new() })))
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.0.listed.neighbors.dims()[0]
    }

    /// The number of neighbours of a row, absent ones among them.
    pub fn slots(&self) -> usize {
        self.0.listed.neighbors.dims()[1]
    }

    fn table(&self, first: First) -> Result<&Table> {
        let listed = &self.0.listed;
        match (first, self.0.with_itself.get()) {
            (First::Listed, _) => Ok(listed),
            (First::Itself, Some(table)) => Ok(table),
            (First::Itself, None) => {
                let own = Tensor::arange(self.rows(), listed.neighbors.device())?.unsqueeze(1)?;
                let table = Table::new(Tensor::concat(&[&own, &listed.neighbors], 1)?);
                Ok(self.0.with_itself.get_or_init(|| table))
            }
        }
    }
}

impl fmt::Debug for Neighbors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Neighbors [{}, {}] on {}", self.rows(), self.slots(), self.0.listed.neighbors.device())
    }
}

impl Table {
    fn new(neighbors: Tensor) -> Table {
        Table { neighbors, inverse: Arc::default() }
    }

    fn inverse(&self) -> Result<&Inverse> {
        if let Some(inverse) = self.inverse.get() {
            return Ok(inverse);
        }
        let inverse = Inverse::new(&self.neighbors)?;
        Ok(self.inverse.get_or_init(|| inverse))
    }
}

impl Inverse {
    /// The inverse of a table `[V, S]` with at least one element.
    fn new(neighbors: &Tensor) -> Result<Inverse> {
        let (rows, slots, n) = (neighbors.dims()[0], neighbors.dims()[1], neighbors.numel());
        let row = Tensor::arange(rows, neighbors.device())?;
        // A list for each u and s, and a last one of absent neighbours.
        let list = neighbors.mul_scalar(slots as i64)?.add(&Tensor::arange(slots, neighbors.device())?)?;
        let list = neighbors.ge_scalar(0)?.where_scalar(&list, n as i64)?.reshape(n)?;
        let row_of = row.unsqueeze(1)?.broadcast_to((rows, slots))?.reshape(n)?;
        let list = if n < i32::MAX as usize { list.cast(DType::I32)? } else { list };
        let lists = EntryLists::new(&list, &row_of, n + 1)?;

        let starts = lists.starts.cast(DType::I64)?;
        let (first, end) = (starts.narrow(0, 0, n)?, starts.narrow(0, 1, n)?);
        let counts = end.sub(&first)?;
        let is_joined = counts.gt_scalar(1)?;
        let number = is_joined.cast(DType::I64)?.cumsum(0)?.add_scalar(rows as i64 - 1)?;
        // Empty lists at the end begin behind the last position.
        let only = lists.others.index_select(0, &first.clamp(None, Some((n as i64 - 1).into()))?)?;
        let found = is_joined.where_cond(&number, &only)?;
        let found = counts.gt_scalar(0)?.where_scalar(&found, -1)?.reshape((rows, slots))?;

        let at = is_joined.nonzero()?.swap_remove(0);
        if at.numel() == 0 {
            return Ok(Inverse { rows: found, joined: None });
        }
        // The lists of several rows, without the others and without absent neighbours.
        let list = row_of_positions(&starts, n)?;
        let is_in_joined = is_joined.index_select(0, &list.clamp(None, Some((n as i64 - 1).into()))?)?;
        let positions = is_in_joined.logical_and(&list.lt_scalar(n as i64)?)?.nonzero()?.swap_remove(0);
        let others = lists.others.index_select(0, &positions)?;
        let ends = counts.index_select(0, &at)?.cumsum(0)?;
        let starts = Tensor::concat(&[&ends.narrow(0, 0, 1)?.mul_scalar(0)?, &ends], 0)?;
        Ok(Inverse { rows: found, joined: Some(Csr::of_rows(&starts, &others, rows)?) })
    }
}

/// The extents of a convolution over a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighborhoods {
    /// Samples, which share the table.
    pub batch: usize,
    /// Rows of a sample: edges or vertices.
    pub rows: usize,
    /// Neighbours of a row, absent ones among them.
    pub slots: usize,
    /// Features of a row of the input.
    pub channels: usize,
    /// Features of a row of the output.
    pub outputs: usize,
}

/// The features of each row's neighbours times a weight. Output: y `[B, V, O]`, for which a neighbour of -1 adds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshForward(pub Neighborhoods);

operands! {
    /// The inputs of [`MeshForward`].
    pub struct MeshInputs {
        /// `[B, V, C]`.
        x,
        /// The neighbours of each row, `[V, S]` (i64), each -1 or below V.
        table,
        /// The weight, `[O, S C]`.
        w,
        /// The bias, `[O]`, strided.
        bias?,
    }
}

/// The gradient of x. Output: dx `[B, V, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshInput(pub Neighborhoods);

operands! {
    /// The inputs of [`MeshInput`].
    pub struct MeshInputInputs {
        /// The gradient of the output, `[B, V, O]`.
        g,
        /// An inverse table, `[V, S]` (i64). Its element is a row of the gradient, or V + i for sum i, or -1.
        table,
        /// The weight of [`MeshForward`] with its channels as rows, `[C, S O]`.
        w,
        /// Sums of rows of the gradient, `[L, B, O]`.
        sums?,
    }
}

/// The gradient of the weight. Output: dw `[O, S C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshWeight(pub Neighborhoods);

operands! {
    /// The inputs of [`MeshWeight`].
    pub struct MeshWeightInputs {
        /// The gradient of the output, `[B, V, O]`.
        g,
        /// `[B, V, C]`.
        x,
        /// The table of [`MeshForward`], `[V, S]`.
        table,
    }
}

impl Fused for MeshForward {
    type Inputs<T> = MeshInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "mesh_conv"
    }

    fn composite(&self, inputs: MeshInputs<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(forward(&self.0, inputs)?) })
    }

    fn companions(&self, inputs: MeshInputs<&Tensor>, before: Output<&Tensor>) -> Result<Option<Output<Tensor>>> {
        of_sizes(self, inputs, before)
    }
}

impl Fused for MeshInput {
    type Inputs<T> = MeshInputInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "mesh_conv_input"
    }

    fn composite(
        &self,
        MeshInputInputs { g, table, w, sums }: MeshInputInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let g = match sums {
            Some(sums) => &Tensor::concat(&[g, &sums.transpose(0, 1)?], 1)?,
            None => g,
        };
        Ok(Output { y: Some(forward(&self.turned(), MeshInputs { x: g, table, w, bias: None })?) })
    }

    fn companions(&self, inputs: MeshInputInputs<&Tensor>, before: Output<&Tensor>) -> Result<Option<Output<Tensor>>> {
        of_sizes(self, inputs, before)
    }
}

impl MeshInput {
    /// The extents of the product, which takes the gradient for x.
    pub fn turned(&self) -> Neighborhoods {
        Neighborhoods { channels: self.0.outputs, outputs: self.0.channels, ..self.0 }
    }
}

impl Fused for MeshWeight {
    type Inputs<T> = MeshWeightInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "mesh_conv_weight"
    }

    fn composite(&self, inputs: MeshWeightInputs<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(weight(&self.0, inputs)?) })
    }

    fn companions(&self, inputs: MeshWeightInputs<&Tensor>, before: Output<&Tensor>) -> Result<Option<Output<Tensor>>> {
        of_sizes(self, inputs, before)
    }
}

/// # Meshes
impl Tensor {
    /// Convolves features of edges x `[E, C]` or `[B, E, C]` by neighbours `[E, K]`: `y[e] = weight [x[e], x[n_1] ..
    /// x[n_K]] + bias`, `[.., E, O]`. The weight is `[O, (1 + K) C]`: column `k C + c` is of feature c of the edge itself (k = 0) or of
    /// neighbour k. The bias is `[O]`. A neighbour of -1 is absent and adds nothing. The order of neighbours counts. Float dtypes.
    ///
    /// Errors: `Shape`, `Dtype`, `Device`. After Hanocka et al. 2019, arXiv:1809.05910, without their symmetric functions of neighbours.
    pub fn mesh_conv(&self, neighbors: &Neighbors, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let names = Names { conv: "mesh_conv", input: "mesh_conv_input", weight: "mesh_conv_weight" };
        convolution(names, First::Itself, self, neighbors, weight, bias)
    }

    /// Convolves features of vertices x `[V, C]` or `[B, V, C]` along spirals `[V, S]`: `y[v] = weight [x[s_1] .. x[s_S]] +
    /// bias`, `[.., V, O]`, for the vertices s of the spiral of v. The weight is `[O, S C]`: column `k C + c` is of feature c of vertex k
    /// of a spiral. The bias is `[O]`. A vertex of -1 is absent and adds nothing. Samples share the spirals. Float dtypes.
    ///
    /// Errors: `Shape`, `Dtype`, `Device`. Gong et al. 2019, arXiv:1911.05856.
    pub fn spiral_conv(&self, spirals: &Neighbors, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let names = Names { conv: "spiral_conv", input: "spiral_conv_input", weight: "spiral_conv_weight" };
        convolution(names, First::Listed, self, spirals, weight, bias)
    }
}

/// The first neighbour of a row.
#[derive(Clone, Copy, PartialEq)]
enum First {
    /// The row itself, before those of the table.
    Itself,
    /// The first of the table.
    Listed,
}

fn convolution(
    names: Names,
    first: First,
    x: &Tensor,
    neighbors: &Neighbors,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    if let Some(([x, weight], bias)) = autocast::low([x, weight], bias)? {
        return no_autocast(|| convolution(names, first, &x, neighbors, &weight, bias.as_ref()));
    }
    let op = names.conv;
    check_operands(op, first, x, neighbors, weight, bias)?;
    let is_sample = x.rank() == 2;
    let x = if is_sample { x.unsqueeze(0)? } else { x.clone() };
    let (batch, rows, channels) = (x.dims()[0], x.dims()[1], x.dims()[2]);
    let table = neighbors.table(first)?.clone();
    let slots = table.neighbors.dims()[1];
    let extents = Neighborhoods { batch, rows, slots, channels, outputs: weight.dims()[0] };
    let y = Maps { names, extents, table }.forward(&x, weight, bias)?;
    if is_sample { y.squeeze(0) } else { Ok(y) }
}

fn check_operands(
    op: &'static str,
    first: First,
    x: &Tensor,
    neighbors: &Neighbors,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<()> {
    check_float(op, x)?;
    check_same(op, &[x, weight].into_iter().chain(bias).collect::<Vec<_>>())?;
    check_device(op, &[x, &neighbors.0.listed.neighbors])?;
    let fits = matches!(x.rank(), 2 | 3) && weight.rank() == 2 && {
        let [rows, channels] = [x.rank() - 2, x.rank() - 1].map(|d| x.dims()[d]);
        let slots = neighbors.slots() + usize::from(first == First::Itself);
        neighbors.rows() == rows
            && slots.checked_mul(channels) == Some(weight.dims()[1])
            && bias.is_none_or(|bias| bias.dims() == [weight.dims()[0]])
    };
    if fits {
        return Ok(());
    }
    let all: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    let expected = match first {
        First::Itself => "x [.., E, C], neighbours [E, K], the weight [O, (1 + K) C] and a bias [O]",
        First::Listed => "x [.., V, C], spirals [V, S], the weight [O, S C] and a bias [O]",
    };
    Err(Error::shape(op, format!("{neighbors:?} and {}: expected {expected}", describe(&all))))
}

/// The maps between the input, the weight and the output of a convolution.
#[derive(Clone)]
struct Maps {
    names: Names,
    extents: Neighborhoods,
    table: Table,
}

impl Maps {
    /// `y[b, v, o] = bias[o] + sum of x[b, table[v, s], c] w[o, s C + c]` over s and c.
    fn forward(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = self.names.conv;
        let Neighborhoods { batch, rows, outputs, .. } = self.extents;
        let (own_x, own_w, b) = (dense(x)?, dense(w)?, bias.map(Tensor::detach));
        let operands = MeshInputs { x: &own_x, table: &self.table.neighbors, w: &own_w, bias: b.as_ref() };
        let y = if self.has_kernel::<MeshForward>(x) {
            let y = Tensor::allocate(op, &Shape::from((batch, rows, outputs)), x.dtype(), x.device())?;
            run_fused(op, &MeshForward(self.extents), operands, Output { y: &y })?;
            y
        } else {
            forward(&self.extents, operands).map_err(|e| e.of(op))?
        };
        let (maps, saved, has_bias) = (self.clone(), [Saved::input(x), Saved::input(w)], bias.is_some());
        let inputs: Vec<&Tensor> = [x, w].into_iter().chain(bias).collect();
        record(op, &inputs, y, move |t| {
            let dx = t.want(0, || maps.input(t.dy(), &t.get(&saved[1])?))?;
            let dw = t.want(1, || maps.weight(t.dy(), &t.get(&saved[0])?))?;
            let mut all: Gradients = [dx, dw].into_iter().collect();
            if has_bias {
                all.push(t.want(2, || t.dy().sum([0, 1]))?);
            }
            Ok(all)
        })
    }

    /// `dx[b, u, c] = sum of g[b, v, o] w[o, s C + c]` over o, and all v and s with `table[v, s] = u`.
    fn input(&self, g: &Tensor, w: &Tensor) -> Result<Tensor> {
        let op = self.names.input;
        let (own_g, own_w) = (dense(g)?, dense(w)?);
        let dx = if self.has_kernel::<MeshInput>(g) && self.extents.rows > 0 {
            self.product_for_input(&own_g, &own_w)?
        } else {
            input(&self.extents, &own_g, &self.table.neighbors, &own_w).map_err(|e| e.of(op))?
        };
        let (maps, saved) = (self.clone(), [Saved::input(g), Saved::input(w)]);
        record(op, &[g, w], dx, move |t| {
            let dg = t.want(0, || maps.forward(t.dy(), &t.get(&saved[1])?, None))?;
            let dw = t.want(1, || maps.weight(&t.get(&saved[0])?, t.dy()))?;
            gradients![dg, dw]
        })
    }

    /// The same as a product with the inverse table: rows of g that have the same neighbour u in the same place s are added before.
    fn product_for_input(&self, g: &Tensor, w: &Tensor) -> Result<Tensor> {
        let op = self.names.input;
        let Neighborhoods { batch, rows, slots, channels, outputs } = self.extents;
        let Inverse { rows: table, joined } = self.table.inverse()?;
        let sum = |lists: &Csr| {
            // Samples are features of a row here, so that one pattern serves all of them.
            let g = g.transpose(0, 1)?.reshape((rows, batch * outputs))?;
            no_autocast(|| g.sparse_mm(lists, None))?.reshape((lists.rows(), batch, outputs))
        };
        let sums = joined.as_ref().map(sum).transpose()?;
        let turned = w.reshape((outputs, slots, channels))?.transpose(0, 2)?;
        let turned = turned.reshape((channels, slots * outputs))?.contiguous()?;
        let dx = Tensor::allocate(op, &Shape::from((batch, rows, channels)), g.dtype(), g.device())?;
        let inputs = MeshInputInputs { g, table, w: &turned, sums: sums.as_ref() };
        run_fused(op, &MeshInput(self.extents), inputs, Output { y: &dx })?;
        Ok(dx)
    }

    /// `dw[o, s C + c] = sum of g[b, v, o] x[b, table[v, s], c]` over samples b and rows v.
    fn weight(&self, g: &Tensor, x: &Tensor) -> Result<Tensor> {
        let op = self.names.weight;
        let Neighborhoods { slots, channels, outputs, .. } = self.extents;
        let (own_g, own_x) = (dense(g)?, dense(x)?);
        let operands = MeshWeightInputs { g: &own_g, x: &own_x, table: &self.table.neighbors };
        let dw = if self.has_kernel::<MeshWeight>(x) {
            let dw = Tensor::allocate(op, &Shape::from((outputs, slots * channels)), x.dtype(), x.device())?;
            run_fused(op, &MeshWeight(self.extents), operands, Output { y: &dw })?;
            dw
        } else {
            weight(&self.extents, operands).map_err(|e| e.of(op))?
        };
        let (maps, saved) = (self.clone(), [Saved::input(g), Saved::input(x)]);
        record(op, &[g, x], dw, move |t| {
            let dg = t.want(0, || maps.forward(&t.get(&saved[1])?, t.dy(), None))?;
            let dx = t.want(1, || maps.input(&t.get(&saved[0])?, t.dy()))?;
            gradients![dg, dx]
        })
    }

    /// True if the device has a kernel, and there is something to multiply.
    fn has_kernel<F: Fused>(&self, x: &Tensor) -> bool {
        has_kernel::<F>(x) && self.extents.slots > 0 && self.extents.outputs > 0
    }
}

/// An operand of a product, outside of the tape. Strides would change the order of sums.
fn dense(x: &Tensor) -> Result<Tensor> {
    x.detach().contiguous()
}

/// The index of each neighbour of a table, `[V S]`, and `rows` for absent ones.
fn numbers(table: &Tensor, rows: usize) -> Result<Tensor> {
    table.ge_scalar(0)?.where_scalar(table, rows as i64)?.reshape(table.numel())
}

/// The features of each row's neighbours, `[B V, S C]`. Those of absent ones are 0.
fn columns(e: &Neighborhoods, x: &Tensor, table: &Tensor) -> Result<Tensor> {
    let Neighborhoods { batch, rows, slots, channels, .. } = *e;
    let zeros = Tensor::zeros((batch, 1, channels), x.dtype(), x.device())?;
    let found = Tensor::concat(&[x, &zeros], 1)?.index_select(1, &numbers(table, x.dims()[1])?)?;
    found.reshape((batch * rows, slots * channels))
}

/// The composite of [`MeshForward`].
fn forward(e: &Neighborhoods, inputs: MeshInputs<&Tensor>) -> Result<Tensor> {
    let MeshInputs { x, table, w, bias } = inputs;
    no_autocast(|| {
        if !is_finite(w)? {
            return forward_by_slots(e, inputs);
        }
        columns(e, x, table)?.linear(w, bias)?.reshape((e.batch, e.rows, e.outputs))
    })
}

/// The same without products of absent neighbours: an infinite weight times 0 is no zero.
fn forward_by_slots(e: &Neighborhoods, MeshInputs { x, table, w, bias }: MeshInputs<&Tensor>) -> Result<Tensor> {
    let acc = x.dtype().acc();
    let (wide, w) = (x.cast(acc)?, w.cast(acc)?);
    let mut y = Tensor::zeros((e.batch, e.rows, e.outputs), acc, x.device())?;
    for s in 0..e.slots {
        let at = table.select(1, s as isize)?;
        let is_there = at.ge_scalar(0)?;
        let found = wide.index_select(1, &is_there.where_scalar(&at, 0)?)?;
        let part = found.matmul(&w.narrow(1, s * e.channels, e.channels)?.t()?)?;
        y = y.add(&is_there.unsqueeze(1)?.where_scalar(&part, 0.0)?)?;
    }
    if let Some(bias) = bias {
        y = y.add(&bias.cast(acc)?)?;
    }
    y.cast(x.dtype())
}

/// The composite of [`MeshWeight`].
fn weight(e: &Neighborhoods, inputs: MeshWeightInputs<&Tensor>) -> Result<Tensor> {
    let MeshWeightInputs { g, x, table } = inputs;
    no_autocast(|| {
        let dw = g.reshape((e.batch * e.rows, e.outputs))?.t()?.matmul(&columns(e, x, table)?)?;
        if is_finite(&dw)? { Ok(dw) } else { weight_by_slots(e, inputs) }
    })
}

/// The same without products of absent neighbours.
fn weight_by_slots(e: &Neighborhoods, MeshWeightInputs { g, x, table }: MeshWeightInputs<&Tensor>) -> Result<Tensor> {
    let acc = x.dtype().acc();
    let (g, wide) = (g.cast(acc)?, x.cast(acc)?);
    let part = |s: usize| {
        let at = table.select(1, s as isize)?;
        let there = at.ge_scalar(0)?.nonzero()?.swap_remove(0);
        let n = e.batch * there.numel();
        let found = wide.index_select(1, &at.index_select(0, &there)?)?.reshape((n, e.channels))?;
        g.index_select(1, &there)?.reshape((n, e.outputs))?.t()?.matmul(&found)
    };
    let parts: Vec<Tensor> = (0..e.slots).map(part).collect::<Result<_>>()?;
    Tensor::concat(&parts.iter().collect::<Vec<_>>(), 1)?.cast(x.dtype())
}

/// The composite of [`MeshInput`] and its sums: the share of each neighbour, and sums of the shares of each row in the order of the table.
fn input(e: &Neighborhoods, g: &Tensor, table: &Tensor, w: &Tensor) -> Result<Tensor> {
    let Neighborhoods { batch, rows, slots, channels, outputs } = *e;
    let acc = g.dtype().acc();
    no_autocast(|| {
        // Samples are features of a row here, so that one index serves all of them.
        let wide = g.cast(acc)?.transpose(0, 1)?.reshape((rows * batch, outputs))?;
        let shares = wide.matmul(&w.cast(acc)?)?.reshape((rows, batch, slots, channels))?;
        let shares = shares.transpose(1, 2)?.reshape((rows * slots, batch * channels))?;
        // The last row is that of absent neighbours.
        let zeros = Tensor::zeros((rows + 1, batch * channels), acc, g.device())?;
        let sums = zeros.index_add(0, &numbers(table, rows)?, &shares, 1)?.narrow(0, 0, rows)?;
        let dx = sums.reshape((rows, batch, channels))?.transpose(0, 1)?;
        dx.cast(g.dtype())?.contiguous()
    })
}
