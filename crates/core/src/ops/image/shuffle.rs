//! Channels as pixels and back, and channels of different groups side by side.

use crate::{Dims, Error, Result, Shape, Tensor};

/// The last `n` dimensions under other extents.
fn reshaped(x: &Tensor, n: usize, extents: &[usize]) -> Result<Tensor> {
    let mut dims = Dims::from_slice(&x.dims()[..x.rank() - n]);
    dims.extend_from_slice(extents);
    x.reshape(Shape::from(dims))
}

/// The last dimensions of `x` in another order: dimension `k` of them is `order[k]`, counted from the first of these.
fn reordered<const N: usize>(x: &Tensor, order: [usize; N]) -> Result<Tensor> {
    let first = x.rank() - N;
    let all: Vec<isize> = (0..first).chain(order.map(|d| first + d)).map(|d| d as isize).collect();
    x.permute(&all)
}

/// The extents `[C, H, W]`, for a positive number `n`.
fn images(op: &'static str, x: &Tensor, what: &str, n: usize) -> Result<[usize; 3]> {
    if n == 0 || n > u32::MAX as usize {
        return Err(Error::attr(op, format!("{what} is {n}, expected a positive number below 2^32")));
    }
    match *x.dims() {
        [.., c, h, w] => Ok([c, h, w]),
        _ => Err(Error::shape(
            op,
            format!("the input {} has {} dimensions, expected [.., C, H, W]", x.shape(), x.rank()),
        )),
    }
}

fn indivisible(op: &'static str, x: &Tensor, what: String) -> Error {
    Error::shape(op, format!("{what} of {} are no multiple of the factor", x.shape()))
}

/// # Pixels and channels
impl Tensor {
    /// Channels as pixels: `[.., C r^2, H, W]` to `[.., C, H r, W r]`. Channel `(c r + i) r + j` has the pixels in row i and column j
    /// of squares of r x r. All dtypes. Errors: `Attr` for a factor of 0; `Shape` below three dimensions, or if channels are no
    /// multiple of r^2. Shi et al. 2016, arXiv 1609.05158.
    pub fn pixel_shuffle(&self, factor: usize) -> Result<Tensor> {
        let (op, r) = ("pixel_shuffle", factor);
        let [c, h, w] = images(op, self, "the factor", r)?;
        if !c.is_multiple_of(r * r) {
            return Err(indivisible(op, self, format!("the {c} channels, in squares of {r} x {r} pixels,")));
        }
        let c = c / (r * r);
        let parts = reshaped(self, 3, &[c, r, r, h, w])?;
        reshaped(&reordered(&parts, [0, 3, 1, 4, 2])?, 5, &[c, h * r, w * r])
    }

    /// Pixels as channels: `[.., C, H r, W r]` to `[.., C r^2, H, W]`, the inverse of [`pixel_shuffle`](Tensor::pixel_shuffle). All
    /// dtypes. Errors: `Attr` for a factor of 0; `Shape` below three dimensions, or if an extent is no multiple of r.
    pub fn pixel_unshuffle(&self, factor: usize) -> Result<Tensor> {
        let (op, r) = ("pixel_unshuffle", factor);
        let [c, h, w] = images(op, self, "the factor", r)?;
        if !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            return Err(indivisible(op, self, format!("the last two extents, in squares of {r} x {r} pixels,")));
        }
        let (h, w) = (h / r, w / r);
        let parts = reshaped(self, 3, &[c, h, r, w, r])?;
        reshaped(&reordered(&parts, [0, 2, 4, 1, 3])?, 5, &[c * r * r, h, w])
    }

    /// Channels of different groups side by side: `[N, C, ..]` to the same shape, where channel `c groups + g` was channel c of group
    /// g. All dtypes. Errors: `Attr` for 0 groups; `Shape` below two dimensions, or if channels are no multiple of the groups. Zhang
    /// et al. 2017, arXiv 1707.01083.
    pub fn channel_shuffle(&self, groups: usize) -> Result<Tensor> {
        let op = "channel_shuffle";
        if groups == 0 {
            return Err(Error::attr(op, "groups is 0, expected 1 or more"));
        }
        let [batch, channels, others @ ..] = self.dims() else {
            return Err(Error::shape(op, format!("the input {} has no channels, expected [N, C, ..]", self.shape())));
        };
        if !channels.is_multiple_of(groups) {
            return Err(Error::shape(
                op,
                format!("the {channels} channels of {} are no multiple of {groups} groups", self.shape()),
            ));
        }
        let parts = (*batch, groups, channels / groups, others.iter().product::<usize>());
        self.reshape(parts)?.transpose(1, 2)?.reshape(self.shape())
    }
}
