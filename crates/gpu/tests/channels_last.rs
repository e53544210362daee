//! Networks whose channels are last in memory: no kernel of a step copies a tensor to another order.

use isograd_core::ops::{Conv, ConvTranspose, MaxPool, Padding};
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{DType, Device, Result, Tensor};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Dialect, Gpu, Launch};
use isograd_nn::{BatchNorm2d, Conv2d, ConvTranspose2d, Forward, Init};
use std::sync::Arc;

static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };
const PADDED: Conv<2> = Conv { stride: [1; 2], padding: Padding::Each([1; 2]), dilation: [1; 2], groups: 1 };

struct Setup {
    gpu: Arc<Gpu>,
    device: Device,
    init: Init,
}

fn setup() -> Setup {
    let gpu = Arc::new(Gpu::with_cache(Arc::new(NullDriver::new(&DIALECT, 1 << 30)), None));
    let device = Device::from_backend("null:0", gpu.clone());
    let init = Init::new(&device).dtype(DType::BF16).channels_last();
    Setup { gpu, device, init }
}

/// The launches of a forward pass, and those of its gradients with respect to all of `leaves`.
fn launches(gpu: &Gpu, leaves: &[&Tensor], f: impl FnOnce() -> Result<Tensor>) -> Result<[Vec<Launch>; 2]> {
    gpu.launches();
    let y = f()?;
    let forward = gpu.launches();
    assert!(y.is_channels_last(), "the result is row-major");
    let dy = y.zeros_like()?;
    gpu.launches();
    let options = BackwardOptions { gradient: Some(dy), ..Default::default() };
    let gradients = grad_with(&y, leaves, &options)?;
    for (gradient, leaf) in gradients.iter().zip(leaves) {
        assert_eq!(gradient.layout().strides(), leaf.layout().strides(), "of {}", leaf.shape());
    }
    Ok([forward, gpu.launches()])
}

/// Asserts that so many launches copy elements, all in words of neighbours, and that no other launch takes single elements.
fn assert_copies(launches: &[Launch], expected: usize) {
    let text = launches.iter().map(|launch| format!("{launch}\n")).collect::<String>();
    let is_single = |program: &str| program.starts_with("elementwise ") && program.contains(" VECTOR=1 ");
    let single = launches.iter().filter(|launch| is_single(&launch.program) || launch.program.contains("turn.c"));
    assert_eq!(single.count(), 0, "{text}");
    let copies = launches.iter().filter(|launch| launch.program.contains("ROW=copy "));
    assert_eq!(copies.count(), expected, "{text}");
}

fn conv([input, output]: [usize; 2], kernel: usize, options: &Conv<2>, init: &Init) -> Result<Conv2d> {
    Conv2d::with_options(input, output, [kernel; 2], options, init)
}

#[test]
fn a_stem_and_a_pool_copy_nothing() -> Result<()> {
    let Setup { gpu, device, init } = setup();
    let x = Tensor::zeros((2, 3, 32, 32), DType::BF16, &device)?.to_channels_last()?;
    let stem = conv([3, 16], 7, &Conv { stride: [2; 2], padding: Padding::Each([3; 2]), ..PADDED }, &init)?;
    let (norm, next) = (BatchNorm2d::new(16, &init)?, conv([16, 16], 3, &PADDED, &init)?);
    let pool = MaxPool { stride: [2; 2], padding: [1; 2], ..MaxPool::new([3; 2]) };
    let leaves = [&stem.weight, &next.weight];
    let [forward, backward] = launches(&gpu, &leaves, || {
        let x = norm.forward(&stem.forward(&x)?)?.relu()?.max_pool2d(&pool)?;
        next.forward(&x)?.add(&x)?.relu()
    })?;
    assert_copies(&forward, 0);
    assert_copies(&backward, 0);
    Ok(())
}

/// U-Net with one level, for images of one channel. Both parts of a concatenation are copied to it, and one part of its gradient is copied
/// from it, for two products that read it.
#[test]
fn a_u_net_copies_parts_of_channels_alone() -> Result<()> {
    let Setup { gpu, device, init } = setup();
    let x = Tensor::zeros((2, 1, 32, 32), DType::BF16, &device)?.to_channels_last()?;
    let of = |channels| conv(channels, 3, &PADDED, &init);
    let (first, bottom, last) = (of([1, 16])?, of([16, 32])?, of([32, 16])?);
    let end = conv([16, 8], 1, &Conv::default(), &init)?;
    let norm = BatchNorm2d::new(16, &init)?;
    let doubled = ConvTranspose { stride: [2; 2], ..ConvTranspose::default() };
    let larger = ConvTranspose2d::with_options(32, 16, [2; 2], &doubled, &init)?;
    let leaves = [&first.weight, &bottom.weight, &larger.weight, &last.weight, &end.weight];
    let [forward, backward] = launches(&gpu, &leaves, || {
        let level = norm.forward(&first.forward(&x)?)?.relu()?;
        let low = bottom.forward(&level.max_pool2d(&MaxPool::new([2; 2]))?)?.relu()?;
        let joined = Tensor::concat(&[&level, &larger.forward(&low)?], 1)?;
        end.forward(&last.forward(&joined)?.relu()?)
    })?;
    assert_copies(&forward, 2);
    assert_copies(&backward, 1);
    Ok(())
}
