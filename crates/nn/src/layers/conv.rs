//! Convolutions as layers, with PyTorch's names, defaults and initial values.

use crate::details::{bias, extent, unless};
use crate::layers::bound;
use crate::module::of_rank;
use crate::{Forward, Init, Module, Visitor, VisitorMut, called};
use isograd_core::ops::{Conv, ConvTranspose, Pad, Padding, Unfold};
use isograd_core::{Error, Result, Shape, Tensor};

macro_rules! name {
    ($name:ident) => {
        concat!(module_path!(), "::", stringify!($name))
    };
}

/// A convolution over the last `N` dimensions of `[N, C, ..]` or `[C, ..]`.
///
/// ```
/// # use isograd_core::ops::{Conv, Padding};
/// # use isograd_core::{DType, Device, Tensor};
/// # use isograd_nn::{Conv2d, Forward, Init};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let options = Conv { stride: [2; 2], padding: Padding::Each([1; 2]), ..Conv::default() };
/// let layer = Conv2d::with_options(3, 16, [3, 3], &options, &Init::new(&device))?;
/// let y = layer.forward(&Tensor::ones((8, 3, 32, 32), DType::F32, &device)?)?;
/// assert_eq!(y.dims(), [8, 16, 16, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
#[module(details = self.text())]
#[module(type_name = of_rank(N, [name!(Conv1d), name!(Conv2d), name!(Conv3d)]))]
pub struct Convolution<const N: usize> {
    /// `[out, in / groups, k..]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: Conv<N>,
    /// The elements of the padding; zeros by default.
    #[module(skip)]
    pub padding_mode: Pad,
}

impl<const N: usize> Convolution<N> {
    /// With other elements than zeros as padding.
    pub fn padding_mode(self, padding_mode: Pad) -> Self {
        Convolution { padding_mode, ..self }
    }

    fn text(&self) -> String {
        let Conv { stride, padding, dilation, groups } = self.options;
        let (input, output) = (extent(&self.weight, 1) * groups, extent(&self.weight, 0));
        text([input, output], &self.weight, &self.bias, (stride, dilation, groups))
            + &unless("padding", padding, Padding::Valid)
            + &unless("padding_mode", self.padding_mode, Pad::ZEROS)
    }

    /// The input with its padding, and the options of the convolution of it.
    fn padded(&self, op: &'static str, x: &Tensor) -> Result<(Tensor, Conv<N>)> {
        if self.padding_mode == Pad::ZEROS {
            return Ok((x.clone(), self.options));
        }
        let ends = self.options.ends(op, &self.weight)?.map(|ends| ends.map(|n| n as isize));
        Ok((x.pad(&ends, self.padding_mode)?, Conv { padding: Padding::Valid, ..self.options }))
    }
}

/// A transposed convolution over the last `N` dimensions of `[N, C, ..]` or `[C, ..]`.
#[derive(Module)]
#[module(details = self.text())]
#[module(type_name = of_rank(N, [name!(ConvTranspose1d), name!(ConvTranspose2d), name!(ConvTranspose3d)]))]
pub struct TransposedConvolution<const N: usize> {
    /// `[in, out / groups, k..]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Stride, padding, output padding, dilation and groups.
    #[module(skip)]
    pub options: ConvTranspose<N>,
}

/// Channels, kernel and those options of a convolution that are not the default.
fn text<const N: usize>(
    [input, output]: [usize; 2],
    weight: &Tensor,
    with_bias: &Option<Tensor>,
    (stride, dilation, groups): ([usize; N], [usize; N], usize),
) -> String {
    let kernel = &weight.dims()[weight.rank().min(2)..];
    format!("{input} -> {output}, kernel {kernel:?}{}", bias(with_bias))
        + &unless("stride", stride, [1; N])
        + &unless("dilation", dilation, [1; N])
        + &unless("groups", groups, 1)
}

impl<const N: usize> TransposedConvolution<N> {
    fn text(&self) -> String {
        let ConvTranspose { stride, padding, output_padding, dilation, groups } = self.options;
        let (input, output) = (extent(&self.weight, 0), extent(&self.weight, 1) * groups);
        text([input, output], &self.weight, &self.bias, (stride, dilation, groups))
            + &unless("padding", padding, [0; N])
            + &unless("output_padding", output_padding, [0; N])
    }

    fn unpadded(&self, _op: &'static str, x: &Tensor) -> Result<(Tensor, ConvTranspose<N>)> {
        Ok((x.clone(), self.options))
    }
}

/// `[outer, inner / groups, k..]`, and the bound of uniform initial values: Kaiming's rule for a leaky relu of slope sqrt(5).
fn weight_shape(op: &'static str, outer: usize, inner: usize, kernel: &[usize], groups: usize) -> Result<(Shape, f64)> {
    if groups == 0 || !outer.is_multiple_of(groups) || !inner.is_multiple_of(groups) {
        return Err(Error::attr(op, format!("{inner} and {outer} channels are no multiples of {groups} groups")));
    }
    let dims: Vec<usize> = [outer, inner / groups].into_iter().chain(kernel.iter().copied()).collect();
    let bound = bound(dims[1..].iter().product());
    Ok((Shape::new(&dims), bound))
}

macro_rules! layers {
    ($($layer:ident $options:ident ($extents:expr) $input:ident [$($default:tt)*] $($n:literal $name:ident $method:ident)*;)*) => {$(
        impl<const N: usize> $layer<N> {
            /// Weight and bias uniform in `±1 / sqrt(fan)`; the fan is the product of the weight's extents except the first.
            /// Errors: `Attr` if channels are no multiples of the groups.
            pub fn new(input: usize, output: usize, kernel: [usize; N], init: &Init) -> Result<Self> {
                Self::with_options(input, output, kernel, &$options::default(), init)
            }

            /// [`new`](Self::new) with options.
            pub fn with_options(
                input: usize,
                output: usize,
                kernel: [usize; N],
                options: &$options<N>,
                init: &Init,
            ) -> Result<Self> {
                let [outer, inner] = ($extents)(input, output);
                let (shape, bound) = weight_shape(stringify!($layer), outer, inner, &kernel, options.groups)?;
                let weight = init.uniform(shape, -bound, bound)?;
                Ok($layer { weight, bias: Some(init.uniform(output, -bound, bound)?), options: *options $($default)* })
            }

            /// Without a bias. Errors: as [`new`](Self::new).
            pub fn without_bias(
                input: usize,
                output: usize,
                kernel: [usize; N],
                options: &$options<N>,
                init: &Init,
            ) -> Result<Self> {
                let [outer, inner] = ($extents)(input, output);
                let (shape, bound) = weight_shape(stringify!($layer), outer, inner, &kernel, options.groups)?;
                Ok($layer { weight: init.uniform(shape, -bound, bound)?, bias: None, options: *options $($default)* })
            }
        }

        $(
            #[doc = concat!("[`Tensor::", stringify!($method), "`].")]
            pub type $name = $layer<$n>;

            impl Forward for $layer<$n> {
                fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    called(self, &[x], || {
                        let (x, options) = self.$input(stringify!($method), x)?;
                        x.$method(&self.weight, self.bias.as_ref(), &options)
                    })
                }
            }
        )*
    )*};
}

layers! {
    Convolution Conv (|input, output| [output, input]) padded [, padding_mode: Pad::ZEROS]
        1 Conv1d conv1d 2 Conv2d conv2d 3 Conv3d conv3d;
    TransposedConvolution ConvTranspose (|input, output| [input, output]) unpadded []
        1 ConvTranspose1d conv_transpose1d 2 ConvTranspose2d conv_transpose2d 3 ConvTranspose3d conv_transpose3d;
}

impl Module for Unfold {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

/// [`Tensor::unfold`].
impl Forward for Unfold {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.unfold(self))
    }
}

/// [`Tensor::fold`]: columns of windows, added to images of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Height and width.
    pub size: [usize; 2],
    /// The windows.
    pub windows: Unfold,
}

impl Module for Fold {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for Fold {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.fold(self.size, &self.windows))
    }
}
