//! Convolutions: graphs of one operation.

use super::{Attribute, Cudnn, DataType, Kernels, Kind, Networks, Object, Storage, Type, data_type};
use cudarc::cudnn::sys::{cudnnBackendNumericalNote_t as Note, cudnnConvolutionMode_t as Mode};
use isograd_core::{DType, Precision, Result};
use isograd_gpu::driver::dnn::{self, Map};
use std::ffi::c_uint;

/// Numbers of operands in a graph: of input, weight and output.
pub(super) const IDS: [i64; 3] = [1, 2, 3];

impl Cudnn {
    fn convolution(&'static self, problem: &dnn::Convolution, compute: DataType) -> Result<Object> {
        let convolution = self.object(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        let integers = |name, values: &[i64]| convolution.set(name, Type::CUDNN_TYPE_INT64, values);
        let mode = [Mode::CUDNN_CROSS_CORRELATION as c_uint];
        convolution.set(Attribute::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &mode)?;
        let compute = [compute as c_uint];
        convolution.set(Attribute::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &compute)?;
        integers(Attribute::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[problem.stride.len() as i64])?;
        integers(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &problem.stride)?;
        integers(Attribute::CUDNN_ATTR_CONVOLUTION_DILATIONS, &problem.dilation)?;
        integers(Attribute::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &problem.padding[0])?;
        integers(Attribute::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &problem.padding[1])?;
        convolution.finalize("convolution")?;
        Ok(convolution)
    }

    /// The operation of a problem on its operands: input, weight and output.
    fn operation(
        &'static self,
        problem: &dnn::Convolution,
        convolution: &Object,
        operands: &[Object; 3],
    ) -> Result<Object> {
        use Attribute as A;
        let (kind, [x, w, y], of, alpha, beta) = match problem.map {
            Map::Forward => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                ],
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ),
            Map::Input => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                ],
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ),
            Map::Weight => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                ],
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ),
        };
        let operation = self.object(kind)?;
        operation.set_objects(of, &[convolution])?;
        [x, w, y].into_iter().zip(operands).try_for_each(|(name, operand)| operation.set_objects(name, &[operand]))?;
        let factors = [(alpha, 1.0), (beta, 0.0)];
        for (name, factor) in factors {
            match problem.dtype {
                DType::F64 => operation.set(name, Type::CUDNN_TYPE_DOUBLE, &[factor])?,
                _ => operation.set(name, Type::CUDNN_TYPE_FLOAT, &[factor as f32])?,
            }
        }
        operation.finalize("operation")?;
        Ok(operation)
    }
}

impl Networks {
    pub(super) fn convolution_kernels(&self, problem: &dnn::Convolution, most: usize) -> Result<Kernels> {
        let library = self.library;
        let none = Kernels { plans: Vec::new(), _graph: Vec::new() };
        let Some(dtype) = data_type(problem.dtype) else { return Ok(none) };
        let compute = if problem.dtype == DType::F64 { dtype } else { DataType::CUDNN_DATA_FLOAT };
        let views = [&problem.input, &problem.weight, &problem.output];
        let tensor = |k: usize| library.tensor(IDS[k], views[k], dtype, Storage::Memory);
        let operands = [tensor(0)?, tensor(1)?, tensor(2)?];
        let convolution = library.convolution(problem, compute)?;
        let operation = library.operation(problem, &convolution, &operands)?;
        let (graph, plans) = self.kernels_of(&[&operation], most, |notes| is_taken(problem, notes))?;
        let _graph = operands.into_iter().chain([convolution, operation, graph]).collect();
        Ok(Kernels { plans, _graph })
    }
}

/// Whether an engine with these remarks computes as exactly as our kernels do, and 16 bits on matrix units. The library proposes others first
/// for some windows of one element, which take five times as long and copy images into another order.
fn is_taken(problem: &dnn::Convolution, notes: &[c_uint]) -> bool {
    let has = |note: Note| notes.contains(&(note as c_uint));
    let is_rounded = [
        Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
        Note::CUDNN_NUMERICAL_NOTE_FFT,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD,
    ];
    let is_narrow = problem.dtype == DType::F32
        && problem.precision == Precision::Exact
        && (has(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) || has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
    let is_random = problem.is_deterministic && has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    let is_slow = problem.dtype.size() == 2 && !has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    !is_slow && !is_narrow && !is_random && !is_rounded.into_iter().any(has)
}
