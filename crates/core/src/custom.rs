//! Ops defined by a program: a kernel, its reference on the CPU, and its gradient.

use crate::backend::Kernel;
use crate::check::check_device;
use crate::tape::{Saved, record};
use crate::tensor::{Attributes, run};
use crate::{DType, Error, Result, Shape, Tensor};
use std::fmt;
use std::hash::{Hash, Hasher};

/// An op defined by a program, in a `static`: the source of its kernel, which GPUs compile at the first call, and a function that
/// computes the same on the CPU. It is called as any op and is on the tape. `isograd::parity::check` checks it.
///
/// ```
/// use isograd_core::custom::{CustomOp, Gradient, Launch, Source};
/// use isograd_core::{Result, Tensor};
///
/// static DOUBLE: CustomOp = CustomOp {
///     name: "double",
///     output: |x| Ok((x[0].shape().clone(), x[0].dtype())),
///     cpu: |call, y| y.iter_mut().zip(&call.inputs[0].elements).for_each(|(y, x)| *y = 2.0 * x),
///     source: Source::Common(
///         "KERNEL(double)(GLOBAL const STORAGE(T0) *x, GLOBAL STORAGE(T) *y, i64 n) {
///             EACH(i) STORE(T, y, i, 2 * LOAD(T0, x, i));
///         }",
///     ),
///     launch: Launch::Elements,
///     gradient: Gradient::Twice(|g| Ok(vec![Some(DOUBLE.call(&[&g.dy])?)])),
/// };
///
/// fn double(x: &Tensor) -> Result<Tensor> {
///     DOUBLE.call(&[x])
/// }
/// ```
pub struct CustomOp {
    /// The name of the kernel. It also names the op in nodes of the tape and in errors.
    pub name: &'static str,
    /// Shape and dtype of the output. Returns an error for inputs that the op does not accept.
    pub output: fn(&[&Tensor]) -> Result<(Shape, DType)>,
    /// Computes the elements of the output, in row-major order. They are rounded to the output's dtype. One function is therefore
    /// the op on the CPU in every dtype, and the reference in f64.
    pub cpu: fn(&CustomCall<'_>, &mut [f64]),
    /// The source of the kernel.
    pub source: Source,
    /// The number of threads of a launch.
    pub launch: Launch,
    /// The gradient.
    pub gradient: Gradient,
}

/// The source of a kernel. It begins with `KERNEL(<name of the op>)`. Its arguments are the inputs, the output, the number of the
/// output's elements (`i64`), and the call's integers (`i64`) and floats (`A`), if any. Tensors are contiguous.
///
/// The source is compiled for the dtypes of a call: `T0`, `T1`, .. of the inputs and `T` of the output. Memory has the type
/// `STORAGE(T)`; `LOAD(T, p, i)` reads an element and `STORE(T, p, i, v)` writes one. `A` is the type of the arithmetic: f32, f64
/// for f64, i64 for integers. `EACH(i)` loops over the elements of the output. `kernels/common.h` and the preludes define the rest.
pub enum Source {
    /// In the common subset of C99 and C++, for all GPUs.
    Common(&'static str),
    /// One source per dialect: `cuda`, `hip`, `opencl`. A device whose dialect is missing returns an `Unsupported` error.
    Each(&'static [(&'static str, &'static str)]),
}

impl Source {
    /// The source for a dialect.
    pub fn of(&self, dialect: &str) -> Option<&'static str> {
        match *self {
            Source::Common(text) => Some(text),
            Source::Each(texts) => texts.iter().find(|(name, _)| *name == dialect).map(|(_, text)| *text),
        }
    }
}

/// The number of threads that run a kernel.
pub enum Launch {
    /// One thread per element of the output; `EACH(i)` gives its index.
    Elements,
    /// A number of groups that depends on the shape of the output.
    Groups {
        /// Threads of a group, a power of 2. In the kernel: `THREADS`; the thread's index is `LANE`.
        threads: usize,
        /// The number of groups. In the kernel, the group's index is `GROUP`.
        groups: fn(&Shape) -> usize,
    },
}

/// The gradient of an op: one per input, or `None` for an input without a gradient. Gradients that no input requires are dropped.
pub enum Gradient {
    /// The op is not differentiable: its result is outside of the tape.
    None,
    /// By kernels without a gradient of their own: a second derivative is an error.
    Once(fn(&CustomBackward) -> Result<Vec<Option<Tensor>>>),
    /// By ops that are all differentiable.
    Twice(fn(&CustomBackward) -> Result<Vec<Option<Tensor>>>),
}

/// A call on the CPU.
pub struct CustomCall<'a> {
    /// The inputs.
    pub inputs: Vec<Values>,
    /// The shape of the output.
    pub shape: &'a Shape,
    /// The integers of the call.
    pub ints: &'a [i64],
    /// The floats of the call.
    pub floats: &'a [f64],
}

/// A tensor as numbers.
pub struct Values {
    /// Its shape.
    pub shape: Shape,
    /// Its elements in row-major order.
    pub elements: Vec<f64>,
}

/// The arguments of a gradient function.
pub struct CustomBackward {
    /// The gradient of the output.
    pub dy: Tensor,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The output.
    pub y: Tensor,
    /// The integers of the call.
    pub ints: Vec<i64>,
    /// The floats of the call.
    pub floats: Vec<f64>,
}

impl CustomOp {
    /// Runs the op on one to eight inputs on one device. Errors: the errors of `output`; `Device`; `Unsupported` if there is no
    /// kernel for the device; `Backend` with the compiler's log.
    pub fn call(&'static self, inputs: &[&Tensor]) -> Result<Tensor> {
        self.call_with(inputs, &[], &[])
    }

    /// [`call`](CustomOp::call) with numbers, which the kernel receives after its tensors.
    pub fn call_with(&'static self, inputs: &[&Tensor], ints: &[i64], floats: &[f64]) -> Result<Tensor> {
        let op = self.name;
        if inputs.is_empty() || inputs.len() > 8 {
            return Err(Error::value(op, format!("{} inputs were given, expected 1 to 8", inputs.len())));
        }
        check_device(op, inputs)?;
        let (shape, dtype) = (self.output)(inputs)?;
        let inputs: Vec<Tensor> = inputs.iter().map(|x| x.contiguous()).collect::<Result<_>>()?;
        let references: Vec<&Tensor> = inputs.iter().collect();
        let y = Tensor::allocate(op, &shape, dtype, inputs[0].device())?;
        if y.numel() > 0 {
            run(op, Kernel::Custom(self), &references, &[&y], Attributes { ints, floats })?;
        }
        let (rule, is_once) = match self.gradient {
            Gradient::None => return Ok(y),
            Gradient::Once(rule) => (rule, true),
            Gradient::Twice(rule) => (rule, false),
        };
        let (saved, output): (Vec<Saved>, Saved) = (inputs.iter().map(Saved::input).collect(), Saved::output(&y));
        let (ints, floats) = (ints.to_vec(), floats.to_vec());
        record(op, &references, y, move |t| {
            if is_once && t.creates_graph() {
                return Err(Error::unsupported(op, "the op has no second derivative"));
            }
            let inputs = saved.iter().map(|x| t.get(x)).collect::<Result<Vec<_>>>()?;
            let (dy, y) = (t.dy().clone(), t.get(&output)?);
            let all = rule(&CustomBackward { dy, inputs, y, ints: ints.clone(), floats: floats.clone() })?;
            if all.len() != saved.len() {
                let message = format!("its gradient is one of {} inputs, expected {}", all.len(), saved.len());
                return Err(Error::value(op, message));
            }
            let wanted = |(i, g): (usize, Option<Tensor>)| match (t.needs(i), g) {
                (true, None) => Err(Error::value(op, format!("its gradient leaves input {i} out"))),
                (true, g) => Ok(g),
                (false, _) => Ok(None),
            };
            all.into_iter().enumerate().map(wanted).collect::<Result<Vec<_>>>()
        })
    }
}

// Two ops are equal if they are the same static.
impl PartialEq for CustomOp {
    fn eq(&self, other: &CustomOp) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for CustomOp {}

impl Hash for CustomOp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
