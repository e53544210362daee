//! Attention: a graph of products, a softmax and masks, which the library recognises and computes by one kernel. Its parts and their
//! order are those of NVIDIA's guide to cuDNN's attention; another order is not recognised.

use super::{
    Attribute as A, Cudnn, DataType, ExecutionPlan, Kernels, Kind, Networks, Object, Storage, Type, data_type,
};
use cudarc::cudnn::sys::{
    cudnnBackendNumericalNote_t as Note, cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduction,
};
use isograd_core::Result;
use isograd_gpu::Address;
use isograd_gpu::driver::dnn::{self, Sizes, View};
use std::ffi::c_uint;

/// The first version that clears its own sums of the gradient of queries, 9.6.
const OLDEST: usize = 9_06_00;
/// Parts of the workspace begin at multiples of so many bytes.
pub(super) const ALIGN: usize = 256;

/// Numbers of tensors in a graph. The first ones are those of the problem's operands.
const Q: i64 = 1;
const K: i64 = 2;
const V: i64 = 3;
const O: i64 = 4;
const LSE: i64 = 5;
const DY: i64 = 6;
const DQ: i64 = 7;
const DK: i64 = 8;
const DV: i64 = 9;
/// The factor of scores.
const SCALE: i64 = 20;
/// The factor of what dropout keeps.
const ONE: i64 = 21;
/// The score of a key that a query does not attend to.
const MASKED: i64 = 22;
/// Sums of the result times its gradient, `[B, H, Tq, 1]`.
const SUMS: i64 = 23;
/// The gradient of queries in f32.
const WIDE_DQ: i64 = 24;
/// The first number of a tensor within the kernel.
const WITHIN: i64 = 100;

const F32: DataType = DataType::CUDNN_DATA_FLOAT;

/// B, H, Tq, Tk and D.
fn extents(problem: &dnn::Attention) -> [i64; 5] {
    let (q, k) = (&problem.operands[0].extents, &problem.operands[1].extents);
    [q[0], q[1], q[2], k[2], q[3]]
}

/// Whether the gradient of queries is summed in f32, in an order that changes from run to run. Otherwise the library keeps the gradients of
/// all scores in its workspace.
fn has_wide(problem: &dnn::Attention) -> bool {
    problem.is_backward() && !problem.is_deterministic
}

/// Bytes of the sums, and of the gradient of queries in f32.
fn extra_parts(problem: &dnn::Attention) -> [usize; 2] {
    let [b, h, queries, _, d] = extents(problem);
    let rows = (b * h * queries) as usize * size_of::<f32>();
    let sums = if problem.is_backward() { rows.next_multiple_of(ALIGN) } else { 0 };
    [sums, if has_wide(problem) { rows * d as usize } else { 0 }]
}

/// Bytes of workspace beside the library's.
pub(super) fn extra(problem: &dnn::Attention) -> usize {
    extra_parts(problem).iter().sum()
}

/// A view in row-major order.
fn row_major(extents: [i64; 4]) -> View {
    let [_, b, c, d] = extents;
    View { extents: Sizes::from_slice(&extents), strides: Sizes::from_slice(&[b * c * d, c * d, d, 1]) }
}

/// A view with the last dimensions exchanged.
fn transposed(view: &View) -> View {
    let mut view = view.clone();
    view.extents.swap(2, 3);
    view.strides.swap(2, 3);
    view
}

/// A graph in the making.
struct Builder {
    library: &'static Cudnn,
    tensors: Vec<Object>,
    /// Descriptors of operations' attributes.
    parts: Vec<Object>,
    operations: Vec<Object>,
}

/// The storage of a tensor in a builder's list.
#[derive(Clone, Copy)]
struct Id(usize);

/// A pointwise operation: the mode, the dtype of its arithmetic, and the dimension of an index.
#[derive(Clone, Copy)]
struct Pointwise {
    mode: Mode,
    precision: DataType,
    dim: Option<i64>,
}

impl From<Mode> for Pointwise {
    fn from(mode: Mode) -> Pointwise {
        Pointwise { mode, precision: F32, dim: None }
    }
}

impl Builder {
    fn tensor(&mut self, id: i64, view: &View, dtype: DataType, storage: Storage) -> Result<Id> {
        self.tensors.push(self.library.tensor(id, view, dtype, storage)?);
        Ok(Id(self.tensors.len() - 1))
    }

    fn within(&mut self, view: &View, dtype: DataType) -> Result<Id> {
        self.tensor(WITHIN + self.tensors.len() as i64, view, dtype, Storage::Within)
    }

    fn number(&mut self, id: i64) -> Result<Id> {
        self.tensor(id, &row_major([1; 4]), F32, Storage::Host)
    }

    /// An operation with the tensors that its attributes name.
    fn operation(&mut self, kind: Kind, attribute: Option<(A, Object)>, tensors: &[(A, Id)]) -> Result<()> {
        let operation = self.library.object(kind)?;
        if let Some((name, part)) = attribute {
            operation.set_objects(name, &[&part])?;
            self.parts.push(part);
        }
        for &(name, id) in tensors {
            operation.set_objects(name, &[&self.tensors[id.0]])?;
        }
        operation.finalize("operation")?;
        self.operations.push(operation);
        Ok(())
    }

    fn product(&mut self, a: Id, b: Id, c: Id) -> Result<()> {
        let part = self.library.object(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        part.set(A::CUDNN_ATTR_MATMUL_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[F32 as c_uint])?;
        part.finalize("product")?;
        self.operation(
            Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
            Some((A::CUDNN_ATTR_OPERATION_MATMUL_DESC, part)),
            &[
                (A::CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
                (A::CUDNN_ATTR_OPERATION_MATMUL_BDESC, b),
                (A::CUDNN_ATTR_OPERATION_MATMUL_CDESC, c),
            ],
        )
    }

    /// `y = f(inputs)`. The inputs are x, b and t, as far as the mode has them.
    fn pointwise(&mut self, f: impl Into<Pointwise>, inputs: &[Id], y: Id) -> Result<()> {
        let Pointwise { mode, precision, dim } = f.into();
        let part = self.library.object(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        part.set(A::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode as c_uint])?;
        part.set(A::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[precision as c_uint])?;
        if let Some(dim) = dim {
            part.set(A::CUDNN_ATTR_POINTWISE_AXIS, Type::CUDNN_TYPE_INT64, &[dim])?;
        }
        part.finalize("pointwise operation")?;
        let names = [
            A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            A::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let mut tensors: Vec<(A, Id)> = names.into_iter().zip(inputs.iter().copied()).collect();
        tensors.push((A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
        let name = A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR;
        self.operation(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, Some((name, part)), &tensors)
    }

    /// A pointwise operation whose result stays within the kernel.
    fn then(&mut self, f: impl Into<Pointwise>, inputs: &[Id], view: &View) -> Result<Id> {
        let y = self.within(view, F32)?;
        self.pointwise(f, inputs, y)?;
        Ok(y)
    }

    fn reduce(&mut self, by: Reduction, x: Id, y: Id) -> Result<()> {
        let part = self.library.object(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        let kind = Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
        part.set(A::CUDNN_ATTR_REDUCTION_OPERATOR, kind, &[by as c_uint])?;
        part.set(A::CUDNN_ATTR_REDUCTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[F32 as c_uint])?;
        part.finalize("reduction")?;
        self.operation(
            Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
            Some((A::CUDNN_ATTR_OPERATION_REDUCTION_DESC, part)),
            &[(A::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x), (A::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y)],
        )
    }

    fn reshape(&mut self, x: Id, y: Id) -> Result<()> {
        let tensors = [(A::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x), (A::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, None, &tensors)
    }

    /// The scores with -infinity for the keys after a query's own position.
    fn masked(&mut self, scores: Id, view: &View) -> Result<Id> {
        let index = |dim| Pointwise { mode: Mode::CUDNN_POINTWISE_GEN_INDEX, precision: F32, dim: Some(dim) };
        let [query, key] =
            [self.within(view, DataType::CUDNN_DATA_INT32)?, self.within(view, DataType::CUDNN_DATA_INT32)?];
        self.pointwise(index(2), &[scores], query)?;
        self.pointwise(index(3), &[scores], key)?;
        let boolean = DataType::CUDNN_DATA_BOOLEAN;
        let attends = self.within(view, boolean)?;
        let compare = Pointwise { mode: Mode::CUDNN_POINTWISE_CMP_GE, precision: boolean, dim: None };
        self.pointwise(compare, &[query, key], attends)?;
        let masked = self.number(MASKED)?;
        self.then(Mode::CUDNN_POINTWISE_BINARY_SELECT, &[scores, masked, attends], view)
    }

    fn forward(&mut self, problem: &dnn::Attention, dtype: DataType) -> Result<()> {
        let [b, h, queries, keys, _] = extents(problem);
        let (scores, rows) = (row_major([b, h, queries, keys]), row_major([b, h, queries, 1]));
        let operand = |at: i64| &problem.operands[at as usize - 1];
        let q = self.tensor(Q, operand(Q), dtype, Storage::Memory)?;
        let k = self.tensor(K, &transposed(operand(K)), dtype, Storage::Memory)?;
        let v = self.tensor(V, operand(V), dtype, Storage::Memory)?;
        let o = self.tensor(O, operand(O), dtype, Storage::Memory)?;
        let lse = self.tensor(LSE, operand(LSE), F32, Storage::Memory)?;
        let scale = self.number(SCALE)?;
        let product = self.within(&scores, F32)?;
        self.product(q, k, product)?;
        let mut s = self.then(Mode::CUDNN_POINTWISE_MUL, &[product, scale], &scores)?;
        if problem.is_causal {
            s = self.masked(s, &scores)?;
        }
        let max = self.within(&rows, F32)?;
        self.reduce(Reduction::CUDNN_REDUCE_TENSOR_MAX, s, max)?;
        let shifted = self.then(Mode::CUDNN_POINTWISE_SUB, &[s, max], &scores)?;
        let exp = self.then(Mode::CUDNN_POINTWISE_EXP, &[shifted], &scores)?;
        let sum = self.within(&rows, F32)?;
        self.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, exp, sum)?;
        let log = self.then(Mode::CUDNN_POINTWISE_LOG, &[sum], &rows)?;
        self.pointwise(Mode::CUDNN_POINTWISE_ADD, &[max, log], lse)?;
        let p = self.within(&scores, dtype)?;
        self.pointwise(Mode::CUDNN_POINTWISE_DIV, &[exp, sum], p)?;
        self.product(p, v, o)
    }

    fn backward(&mut self, problem: &dnn::Attention, dtype: DataType) -> Result<()> {
        let [b, h, queries, keys, _] = extents(problem);
        let (scores, rows) = (row_major([b, h, queries, keys]), row_major([b, h, queries, 1]));
        let across = transposed(&scores);
        let operand = |at: i64| &problem.operands[at as usize - 1];
        let q = self.tensor(Q, operand(Q), dtype, Storage::Memory)?;
        let k = self.tensor(K, &transposed(operand(K)), dtype, Storage::Memory)?;
        let v = self.tensor(V, &transposed(operand(V)), dtype, Storage::Memory)?;
        let o = self.tensor(O, operand(O), dtype, Storage::Memory)?;
        let lse = self.tensor(LSE, operand(LSE), F32, Storage::Memory)?;
        let dy = self.tensor(DY, operand(DY), dtype, Storage::Memory)?;
        let dq = self.tensor(DQ, operand(DQ), dtype, Storage::Memory)?;
        let dk = self.tensor(DK, operand(DK), dtype, Storage::Memory)?;
        let dv = self.tensor(DV, operand(DV), dtype, Storage::Memory)?;
        let sums = self.tensor(SUMS, &rows, F32, Storage::Memory)?;
        let (scale, one) = (self.number(SCALE)?, self.number(ONE)?);
        // The sums by which the gradients of scores are shifted.
        let weighted = self.then(Mode::CUDNN_POINTWISE_MUL, &[dy, o], operand(O))?;
        let sum = self.within(&rows, F32)?;
        self.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, weighted, sum)?;
        self.pointwise(Mode::CUDNN_POINTWISE_MUL, &[sum, one], sums)?;
        // The weights again, and the gradient of values.
        let product = self.within(&scores, F32)?;
        self.product(q, k, product)?;
        let scaled = self.then(Mode::CUDNN_POINTWISE_MUL, &[product, scale], &scores)?;
        let mut s = self.then(Mode::CUDNN_POINTWISE_SUB, &[scaled, lse], &scores)?;
        if problem.is_causal {
            s = self.masked(s, &scores)?;
        }
        let p = self.then(Mode::CUDNN_POINTWISE_EXP, &[s], &scores)?;
        let p_across = self.within(&across, dtype)?;
        self.reshape(p, p_across)?;
        self.product(p_across, dy, dv)?;
        // The gradients of scores, of keys and of queries.
        let dp = self.within(&scores, F32)?;
        self.product(dy, v, dp)?;
        let shifted = self.then(Mode::CUDNN_POINTWISE_SUB, &[dp, sums], &scores)?;
        let ds = self.then(Mode::CUDNN_POINTWISE_MUL, &[shifted, p], &scores)?;
        let ds = self.then(Mode::CUDNN_POINTWISE_MUL, &[ds, scale], &scores)?;
        let ds_across = self.within(&across, dtype)?;
        self.reshape(ds, ds_across)?;
        self.product(ds_across, q, dk)?;
        let k_across = self.within(operand(K), F32)?;
        self.reshape(k, k_across)?;
        if !has_wide(problem) {
            return self.product(ds, k_across, dq);
        }
        let wide = self.tensor(WIDE_DQ, &row_major(four(operand(Q))), F32, Storage::Memory)?;
        self.product(ds, k_across, wide)?;
        self.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[wide], dq)
    }
}

fn four(view: &View) -> [i64; 4] {
    [0, 1, 2, 3].map(|d| view.extents[d])
}

impl Networks {
    pub(super) fn attention_kernels(&self, problem: &dnn::Attention, most: usize) -> Result<Kernels> {
        let library = self.library;
        let none = Kernels { plans: Vec::new(), _graph: Vec::new() };
        let Some(dtype) = data_type(problem.dtype).filter(|_| library.number() >= OLDEST) else { return Ok(none) };
        let mut builder = Builder { library, tensors: Vec::new(), parts: Vec::new(), operations: Vec::new() };
        if problem.is_backward() {
            builder.backward(problem, dtype)?
        } else {
            builder.forward(problem, dtype)?
        }
        let Builder { tensors, parts, operations, .. } = builder;
        let is_taken = |notes: &[c_uint]| {
            let is_random = notes.contains(&(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC as c_uint));
            !(is_random && problem.is_deterministic)
        };
        let (graph, plans) = self.kernels_of(&operations.iter().collect::<Vec<_>>(), most, is_taken)?;
        let _graph = tensors.into_iter().chain(parts).chain(operations).chain([graph]).collect();
        Ok(Kernels { plans, _graph })
    }

    /// Enqueues a kernel of attention. The workspace is the library's, and the parts beside it.
    pub(super) fn attend(
        &self,
        problem: &dnn::Attention,
        plan: &ExecutionPlan,
        addresses: &[Address],
        workspace: Address,
    ) -> Result<()> {
        let numbers = [f32::from_bits(problem.scale), 1.0, f32::NEG_INFINITY];
        let number = |at: usize| &raw const numbers[at] as Address;
        let mut ids: Vec<i64> = (Q..).take(addresses.len()).chain([SCALE]).collect();
        let mut places = [addresses, &[number(0)]].concat();
        let mut add = |id, storage| {
            ids.push(id);
            places.push(storage);
        };
        if problem.is_causal {
            add(MASKED, number(2));
        }
        if problem.is_backward() {
            let sums = workspace + plan.workspace.next_multiple_of(ALIGN) as Address;
            add(ONE, number(1));
            add(SUMS, sums);
            if has_wide(problem) {
                add(WIDE_DQ, sums + extra_parts(problem)[0] as Address);
            }
        }
        self.execute(plan, &ids, &places, workspace)
    }
}
