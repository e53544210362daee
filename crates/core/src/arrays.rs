//! Arrays of the crate ndarray as tensors, and tensors as arrays.

use crate::{Device, Element, Error, Result, Tensor};
use ndarray::{Array, ArrayD, ArrayRef, Dimension, IxDyn};

/// # Arrays of ndarray
impl Tensor {
    /// A tensor with the elements of an array, whatever their order in memory, in the array's shape. Errors: `OutOfMemory`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let t = Tensor::from_ndarray(&ndarray::array![[1.0f32, 2.0], [3.0, 4.0]], device)?;
    /// let back = ndarray::Array2::<f32>::try_from(&t)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_ndarray<T: Element, D: Dimension>(array: &ArrayRef<T, D>, device: &Device) -> Result<Tensor> {
        let values: Vec<T> = array.iter().copied().collect();
        Tensor::from_vec(values, array.shape(), device)
    }
}

/// The elements in the tensor's shape. Errors: as [`Tensor::to_vec`]; `Shape` for an array of another rank.
impl<T: Element, D: Dimension> TryFrom<&Tensor> for Array<T, D> {
    type Error = Error;

    fn try_from(t: &Tensor) -> Result<Array<T, D>> {
        let wrong =
            |e: ndarray::ShapeError| Error::shape("to_ndarray", format!("{} is no array of this rank: {e}", t.shape()));
        let array = ArrayD::from_shape_vec(IxDyn(t.dims()), t.to_vec::<T>()?).map_err(wrong)?;
        array.into_dimensionality::<D>().map_err(wrong)
    }
}
