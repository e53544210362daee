//! Padding: elements before the first and after the last one of each dimension.

use crate::backend::Kernel;
use crate::ops::image::resample::{Axis, Resampling, Rule};
use crate::ops::shape::factory::fill;
use crate::ops::{gradients, with_shapes};
use crate::tape::{record, report};
use crate::tensor::{Attributes, run};
use crate::{Dims, Error, Result, Scalar, Shape, Tensor};

/// The elements of a padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pad {
    /// A number.
    Constant(Scalar),
    /// The elements mirrored at the first and at the last one, which are not repeated.
    Reflect,
    /// Copies of the first and of the last element.
    Replicate,
    /// The elements of the other end.
    Circular,
}

impl Pad {
    /// Zeros.
    pub const ZEROS: Pad = Pad::Constant(Scalar::Int(0));
}

impl Default for Pad {
    fn default() -> Pad {
        Pad::ZEROS
    }
}

const OP: &str = "pad";

/// # Padding
impl Tensor {
    /// Adds elements before the first and after the last one of the last dimensions: `ends[k]` are their numbers for the k-th of
    /// these dimensions, in the order of the shape. A negative number first removes elements. All dtypes; other paddings than a
    /// constant are for up to three dimensions. The gradient of a copy goes to its element. A view if nothing is added.
    ///
    /// Errors: `Shape` for more pairs than dimensions, if more elements are removed than a dimension has, for copies of an empty
    /// dimension, and for more copies than a dimension has elements (`Reflect`: as many); `Attr` for more than three dimensions of
    /// copies, or a constant that an integer dtype cannot hold; `Dtype` for a float constant in an integer dtype.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_core::ops::Pad;
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.pad(&[[1, 0]], Pad::ZEROS)?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 0.0, 3.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pad(&self, ends: &[[isize; 2]], pad: Pad) -> Result<Tensor> {
        if ends.len() > self.rank() {
            let message = format!("{} pairs of numbers are more than the dimensions of {}", ends.len(), self.shape());
            return Err(Error::shape(OP, message));
        }
        with_shapes(OP, &[Some(self)], || {
            let kept = cropped(self, &ends.iter().map(|ends| ends.map(|n| n.min(0))).collect::<Vec<_>>())?;
            let added: Vec<[isize; 2]> = ends.iter().map(|ends| ends.map(|n| n.max(0))).collect();
            let y = match pad {
                Pad::Constant(value) => constant(&kept, &added, value)?,
                _ => copies(&kept, &added, pad)?,
            };
            report(OP, &[self], &[&y], || {
                let side = |side: usize| ends.iter().map(|ends| ends[side] as i64).collect::<Vec<_>>()[..].into();
                let (mode, value) = match pad {
                    Pad::Constant(value) => ("constant", value.as_f64()),
                    Pad::Reflect => ("reflect", 0.0),
                    Pad::Replicate => ("edge", 0.0),
                    Pad::Circular => ("wrap", 0.0),
                };
                [("low", side(0)), ("high", side(1)), ("mode", mode.into()), ("value", value.into())]
            });
            Ok(y)
        })
    }
}

fn extent_error(x: &Tensor, ends: &[[isize; 2]], expected: &str) -> Error {
    Error::shape(OP, format!("padding {ends:?} of the last dimensions of {}: expected {expected}", x.shape()))
}

/// The extent `extent + low + high`; `None` if it is negative or cannot be counted.
fn extent(extent: usize, [low, high]: [isize; 2]) -> Option<usize> {
    usize::try_from((extent as isize).checked_add(low)?.checked_add(high)?).ok()
}

/// A view without the elements that negative numbers remove.
fn cropped(x: &Tensor, ends: &[[isize; 2]]) -> Result<Tensor> {
    let first = x.rank() - ends.len();
    let narrowed = |x: Tensor, (k, &[low, high]): (usize, &[isize; 2])| {
        let error = || extent_error(&x, ends, "to remove at most all elements");
        let length = extent(x.dims()[first + k], [low, high]).ok_or_else(error)?;
        if [low, high] == [0; 2] { Ok(x) } else { x.narrow((first + k) as isize, low.unsigned_abs(), length) }
    };
    ends.iter().enumerate().try_fold(x.clone(), narrowed)
}

/// A tensor of `value` with `x` in its middle.
fn constant(x: &Tensor, ends: &[[isize; 2]], value: Scalar) -> Result<Tensor> {
    if ends.iter().flatten().all(|&n| n == 0) {
        return Ok(x.clone());
    }
    let first = x.rank() - ends.len();
    let mut dims = Dims::from_slice(x.dims());
    for (dim, &ends) in dims[first..].iter_mut().zip(ends) {
        *dim = extent(*dim, ends).ok_or_else(|| extent_error(x, &[ends], "an extent that can be counted"))?;
    }
    let y = Tensor::allocate(OP, &Shape::from(dims), x.dtype(), x.device())?;
    fill(OP, &y, value)?;
    if x.numel() > 0 {
        let place = ends.iter().enumerate().fold(y.layout().clone(), |layout, (k, &[low, _])| {
            layout.narrow(first + k, low as usize, x.dims()[first + k], 1)
        });
        run(OP, Kernel::Copy, &[x], &[&y.with_layout(place)], Attributes::default())?;
    }
    let back: Vec<[isize; 2]> = ends.iter().map(|ends| ends.map(|n| -n)).collect();
    record(OP, &[x], y, move |t| gradients![Some(cropped(t.dy(), &back)?)])
}

/// A padding of copies.
fn copies(x: &Tensor, ends: &[[isize; 2]], pad: Pad) -> Result<Tensor> {
    if ends.len() > 3 {
        return Err(Error::attr(OP, format!("{pad:?} is for up to 3 dimensions, got {} pairs of numbers", ends.len())));
    }
    let (first, unused) = (x.rank() - ends.len(), 3 - ends.len());
    let (mut axes, mut dims) = ([Axis::keep(1); 3], Dims::from_slice(x.dims()));
    for (k, &[low, high]) in ends.iter().enumerate() {
        let input = dims[first + k];
        let (most, rule) = match pad {
            Pad::Reflect => (input as isize - 1, Rule::Reflect(low)),
            Pad::Circular => (input as isize, Rule::Circular(low)),
            _ => (isize::MAX, Rule::Replicate(low)),
        };
        if input == 0 || low > most || high > most {
            let expected = format!("an input that is not empty, and at most {most} copies in dimension {}", first + k);
            return Err(extent_error(x, ends, &expected));
        }
        let output =
            extent(input, [low, high]).ok_or_else(|| extent_error(x, ends, "an extent that can be counted"))?;
        let rule = if [low, high] == [0; 2] { Rule::Keep } else { rule };
        (axes[unused + k], dims[first + k]) = (Axis { input, output, rule }, output);
    }
    let to = Shape::from(dims);
    to.check(OP)?;
    Resampling { names: [OP, "pad_backward"], axes, from: x.shape().clone(), to }.apply(x)
}
