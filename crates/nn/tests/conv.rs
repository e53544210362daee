//! Layers of convolutions: paddings with other elements than zeros.

use crate::common::cpu;
use isograd_core::ops::{Conv, Pad, Padding};
use isograd_core::{DType, Result, Rng, Tensor};
use isograd_nn::{Conv1d, Conv2d, Forward, Init};

fn images(shape: &[usize]) -> Result<Tensor> {
    Tensor::rand(shape, -1.0, 1.0, DType::F64, &cpu(), &Rng::new(3))
}

/// A padding of copies is one of zeros around an input that has the copies: the middle of a wider convolution.
#[test]
fn elements_of_the_padding_are_copies_in_every_mode() -> Result<()> {
    let init = Init::new(&cpu()).seed(1).dtype(DType::F64);
    let x = images(&[2, 4, 5, 6])?;
    for padding in [Padding::Each([1, 2]), Padding::Ends([[2, 0], [1, 3]]), Padding::Same, Padding::Valid] {
        let layer = Conv2d::with_options(
            4,
            6,
            [3, 2],
            &Conv { padding, dilation: [1, 2], groups: 2, ..Conv::default() },
            &init,
        )?;
        let ends = layer.options.ends("conv2d", &layer.weight)?.map(|ends| ends.map(|n| n as isize));
        let zeros = layer.forward(&x)?.to_vec::<f64>()?;
        for pad in [Pad::Reflect, Pad::Replicate, Pad::Circular, Pad::Constant(2.5.into())] {
            let wide = x.pad(&ends, pad)?;
            let options = Conv { padding: Padding::Valid, ..layer.options };
            let expected = wide.conv2d(&layer.weight, layer.bias.as_ref(), &options)?;
            let layer = Conv2d { weight: layer.weight.clone(), bias: layer.bias.clone(), ..layer }.padding_mode(pad);
            let y = layer.forward(&x)?;
            assert_eq!(y.dims(), [2, 6, expected.dims()[2], expected.dims()[3]]);
            assert_eq!(y.to_vec::<f64>()?, expected.to_vec::<f64>()?, "{pad:?} {padding:?}");
            assert_eq!(y.to_vec::<f64>()? == zeros, padding == Padding::Valid, "{pad:?} {padding:?}");
        }
    }
    Ok(())
}

#[test]
fn a_padding_of_copies_has_the_gradient_of_the_copied_elements() -> Result<()> {
    let weight = Tensor::from_vec(vec![1.0, 10.0, 100.0], (1, 1, 3), &cpu())?;
    let conv = Conv { padding: Padding::Each([1]), ..Conv::default() };
    let layer = Conv1d { weight, bias: None, options: conv, padding_mode: Pad::Circular };
    let x = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], (1, 1, 4), &cpu())?.require_grad()?;
    let y = layer.forward(&x)?;
    assert_eq!(y.to_vec::<f64>()?, [214.0, 321.0, 432.0, 143.0]);
    y.sum(..)?.backward()?;
    assert_eq!(x.grad().map(|g| g.to_vec::<f64>()).transpose()?, Some(vec![111.0; 4]));
    Ok(())
}
