//! Images side by side.

use isograd_core::ops::Pad;
use isograd_core::{Error, Result, Tensor};

/// Images `[N, C, H, W]` side by side in one, `columns` in a row, with `padding` pixels of 0 around each: `[C, R (H + P) + P, columns (W + P) + P]` for
/// R rows and padding P. Places without an image are 0. The dtype stays. TensorBoard shows the result by its `image`. Errors: `Shape` for another rank or
/// no images; `Attr` for 0 columns.
///
/// ```
/// # use isograd_cpu as _;
/// # use isograd_core::{DType, Device, Tensor};
/// # use isograd_data::images::make_grid;
/// # fn main() -> isograd_core::Result<()> {
/// let images = Tensor::ones((5, 1, 2, 2), DType::F32, &Device::cpu()?)?;
/// assert_eq!(make_grid(&images, 3, 1)?.dims(), [1, 7, 10]);
/// # Ok(())
/// # }
/// ```
pub fn make_grid(images: &Tensor, columns: usize, padding: usize) -> Result<Tensor> {
    let op = "make_grid";
    let &[n, c, h, w] = images.dims() else {
        return Err(Error::shape(op, format!("images are {}, expected [N, C, H, W]", images.shape())));
    };
    if n == 0 || columns == 0 {
        let error = if n == 0 { Error::shape } else { Error::attr };
        return Err(error(op, format!("{n} images in {columns} columns were asked for, expected at least 1 of both")));
    }
    let (columns, padding) = (columns.min(n), padding as isize);
    let rows = n.div_ceil(columns);
    let empty = Tensor::zeros((rows * columns - n, c, h, w), images.dtype(), images.device())?;
    let all = Tensor::concat(&[images, &empty], 0)?.pad(&[[padding, 0], [padding, 0]], Pad::ZEROS)?;
    let (h, w) = (all.dims()[2], all.dims()[3]);
    let placed =
        all.reshape((rows, columns, c, h, w))?.permute(&[2, 0, 3, 1, 4])?.reshape((c, rows * h, columns * w))?;
    placed.pad(&[[0, padding], [0, padding]], Pad::ZEROS)
}
