//! Windows as columns (im2col), and back (col2im).

use crate::check::check_float;
use crate::ops::conv::{Geometry, batch, columns};
use crate::ops::gradients;
use crate::ops::image::window::{Last, Window, Windows};
use crate::tape::record;
use crate::{Error, Kind, Result, Shape, Tensor};

/// Windows over two dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfold {
    /// Elements of a window.
    pub kernel: [usize; 2],
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; 2],
    /// Zeros before the first and after the last element.
    pub padding: [usize; 2],
    /// Distance between adjacent windows.
    pub stride: [usize; 2],
}

impl Unfold {
    /// Windows one element apart, without padding.
    pub fn new(kernel: [usize; 2]) -> Unfold {
        Unfold { kernel, dilation: [1; 2], padding: [0; 2], stride: [1; 2] }
    }

    /// The windows over the last two dimensions of a shape, with `channels` per sample.
    fn geometry(&self, op: &'static str, shape: &Shape, [batch, channels]: [usize; 2]) -> Result<Geometry> {
        let Unfold { kernel, dilation, padding, stride } = *self;
        let window = Window { kernel, stride, low: padding, high: padding, dilation };
        shape.check(op)?;
        let windows = Windows::new(op, shape, &window, Last::Whole)?;
        let [_, rows, columns] = windows.output;
        Shape::from([channels.max(1), kernel[0], kernel[1], rows, columns]).check(op)?;
        Ok(Geometry { batch, groups: 1, channels, outputs: 0, windows })
    }
}

/// # Windows of images
impl Tensor {
    /// The elements of the windows of `[N, C, H, W]` or `[C, H, W]` as columns `[N, C k, Q]`: the k elements of Q windows, both in
    /// row-major order (im2col). Float dtypes. The gradient is [`fold`](Tensor::fold). Errors: `Dtype`; `Attr` for a kernel, stride
    /// or dilation of 0, and for sizes that exceed the kernels' 32-bit indices; `Shape` for another rank, or a window that does not
    /// fit.
    pub fn unfold(&self, unfold: &Unfold) -> Result<Tensor> {
        let op = "unfold";
        check_float(op, self)?;
        let (x, is_sample) = batch::<2>(op, self)?;
        let geometry = unfold.geometry(op, self.shape(), [x.dims()[0], x.dims()[1]])?;
        let y = unfolded(op, &geometry, &x)?;
        if is_sample { y.squeeze(0) } else { Ok(y) }
    }

    /// Adds columns `[N, C k, Q]` or `[C k, Q]` to images `[N, C, H, W]` of `size`: each pixel gets the sum of its copies in
    /// [`unfold`](Tensor::unfold) (col2im). Float dtypes. The gradient is [`unfold`](Tensor::unfold). Errors: `Dtype`; `Attr` as
    /// for `unfold`; `Shape` for another rank, a number of rows that is no multiple of k, or another number of windows.
    pub fn fold(&self, size: [usize; 2], unfold: &Unfold) -> Result<Tensor> {
        let op = "fold";
        check_float(op, self)?;
        let (x, is_sample) = batch::<1>(op, self)?;
        let (samples, rows, windows) = (x.dims()[0], x.dims()[1], x.dims()[2]);
        let geometry = unfold.geometry(op, &Shape::from(size), [samples, 0]).map_err(|e| match e.kind() {
            Kind::Shape => Error::shape(op, format!("{}; the columns are {}", e.message(), self.shape())),
            _ => e,
        })?;
        let window = geometry.windows.window();
        if !rows.is_multiple_of(window) || windows != geometry.windows.outputs() {
            let message =
                format!("columns {} are not those of windows {:?} over {size:?}", self.shape(), unfold.kernel);
            return Err(Error::shape(
                op,
                format!("{message}: [N, C {window}, {}] was expected", geometry.windows.outputs()),
            ));
        }
        let y = folded(op, &Geometry { channels: rows / window, ..geometry }, &x)?;
        if is_sample { y.squeeze(0) } else { Ok(y) }
    }
}

fn unfolded(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    let (y, geometry) = (columns::unfold(op, geometry, x)?, geometry.clone());
    record(op, &[x], y, move |t| gradients![Some(folded("unfold_backward", &geometry, t.dy())?)])
}

fn folded(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    let [_, height, width] = geometry.windows.input;
    let shape = (geometry.batch, geometry.channels, height, width);
    let (y, geometry) = (columns::fold(op, geometry, x)?.reshape(shape)?, geometry.clone());
    record(op, &[x], y, move |t| gradients![Some(unfolded("fold_backward", &geometry, t.dy())?)])
}
