//! How many launches a step takes, on a device that runs nothing.

use isograd_core::{DType, Device, Tensor};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Dialect, Gpu};
use isograd_nn::{
    Adam, AdamW, Forward, GradScaler, Init, Lamb, Lars, Linear, Muon, Optimizer, Relu, Sequential, Sgd, clip_grad_norm,
    clip_grad_value,
};
use std::sync::Arc;

static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };

struct Setup {
    driver: Arc<NullDriver>,
    gpu: Arc<Gpu>,
    device: Device,
    parameters: Vec<Tensor>,
}

/// Parameters of many sizes on a device of its own.
fn setup(dtypes: &[DType]) -> Setup {
    setup_of(300, |i, device| Tensor::zeros(1 + i * 97 % 5000, dtypes[i % dtypes.len()], device).unwrap())
}

fn setup_of(count: usize, parameter: impl Fn(usize, &Device) -> Tensor) -> Setup {
    let driver = Arc::new(NullDriver::new(&DIALECT, 1 << 30));
    let gpu = Arc::new(Gpu::with_cache(driver.clone(), None));
    let device = Device::from_backend("null:0", gpu.clone());
    let parameters: Vec<Tensor> = (0..count).map(|i| parameter(i, &device).require_grad().unwrap()).collect();
    Setup { driver, parameters, device, gpu }
}

impl Setup {
    /// The launches of `run`, once the parameters have gradients.
    fn launches(&self, run: impl FnOnce()) -> usize {
        for p in &self.parameters {
            p.set_grad(Some(p.detach().zeros_like().unwrap())).unwrap();
        }
        self.gpu.launches();
        run();
        self.gpu.launches().len()
    }

    /// The launches of a step, after a first one.
    fn step(&self, mut optimizer: impl Optimizer) -> usize {
        self.launches(|| optimizer.step().unwrap());
        self.launches(|| optimizer.step().unwrap())
    }
}

#[test]
fn a_step_over_300_tensors() {
    let s = setup(&[DType::F32]);
    let all = || s.parameters.clone();
    assert_eq!(s.step(AdamW::from_parameters(all())), 2);
    assert_eq!(s.step(AdamW::from_parameters(all()).amsgrad()), 2);
    assert_eq!(s.step(Sgd::from_parameters(all())), 2);
    assert_eq!(s.step(Sgd::from_parameters(all()).momentum(0.9).nesterov()), 2);
    // Of norms: numbers for each chunk, and those of each parameter.
    assert_eq!(s.step(Lars::from_parameters(all())), 4);
    assert_eq!(s.step(Lamb::from_parameters(all())), 4);
    assert_eq!(s.step(Lars::from_parameters(all()).group(all(), |g| g.skip_trust_ratio())), 2);
    // The norm: a number for each chunk, and one of these.
    assert_eq!(s.step(AdamW::from_parameters(all()).clip_norm(1.0)), 4);
    assert_eq!(s.step(AdamW::from_parameters(all()).clip_value(1.0)), 2);
    // Each group has numbers of its own.
    let grouped = AdamW::from_parameters(all()).group(all()[..100].to_vec(), |g| g.weight_decay(0.0));
    assert_eq!(s.step(grouped), 4);
    let (some, others) = (all()[..100].to_vec(), all()[50..200].to_vec());
    let grouped =
        AdamW::from_parameters(all()).group(some, |g| g.betas(0.5, 0.9)).group(others, |g| g.eps(1e-3).amsgrad());
    assert_eq!(s.step(grouped), 2 * 4);
}

/// Two rows for all; and for the matrices of each shape the norm in two, its bound, the quotient, three products in each of
/// five steps, and the step of the parameters.
#[test]
fn muon_over_48_matrices() {
    let shapes = [[256, 768], [256, 256], [256, 1024], [1024, 256]];
    let s = setup_of(48, |i, device| Tensor::zeros(shapes[i % 4], DType::F32, device).unwrap());
    assert_eq!(s.step(Muon::from_parameters(s.parameters.clone())), 2 + 4 * 20);
}

#[test]
fn each_dtype_has_a_launch() {
    let s = setup(&[DType::F32, DType::F16]);
    assert_eq!(s.step(AdamW::from_parameters(s.parameters.clone())), 3);
}

#[test]
fn clipping_300_gradients() {
    let s = setup(&[DType::BF16]);
    // The norm, three for what follows from it, and one for all gradients.
    assert_eq!(s.launches(|| drop(clip_grad_norm(&s.parameters, 1.0, 2.0).unwrap())), 6);
    assert_eq!(s.launches(|| clip_grad_value(&s.parameters, 1.0).unwrap()), 1);
}

#[test]
fn a_scaled_step_over_300_tensors() {
    let s = setup(&[DType::F16]);
    let mut scaler = GradScaler::new(&s.device).unwrap();
    let mut adam = AdamW::from_parameters(s.parameters.clone());
    // A zero, casts to f32, and the check with the division.
    assert_eq!(s.launches(|| scaler.unscale_(&adam).unwrap()), 3);
    scaler.update().unwrap();
    s.launches(|| adam.step().unwrap());
    // Whether a number is not finite, the scale's inverse, and the step.
    assert_eq!(s.launches(|| scaler.step(&mut adam).unwrap()), 5);
    scaler.update().unwrap();
    // The norm, which also says whether a number is not finite, and what it would be without the scale.
    let mut clipped = AdamW::from_parameters(s.parameters.clone()).clip_norm(1.0);
    s.launches(|| clipped.step().unwrap());
    assert_eq!(s.launches(|| scaler.step(&mut clipped).unwrap()), 8);
}

/// Tables of addresses are uploaded when they are new: memory comes back from the pool at addresses that were seen.
#[test]
fn later_steps_upload_nothing_and_hold_no_more() {
    let s = setup(&[DType::F32]);
    let mut adam = AdamW::from_parameters(s.parameters.clone()).clip_norm(1.0);
    let mut steps = |n: usize| (0..n).for_each(|_| assert!(s.launches(|| adam.step().unwrap()) > 0));
    steps(3);
    let (held, uploads) = (s.device.memory(), s.driver.uploads());
    steps(20);
    assert_eq!((s.device.memory(), s.driver.uploads()), (held, uploads));
}

/// Two products forward and three backward, one of them past relu; relu, the loss and its gradient, two sums of columns, and the
/// optimizer. The first product is cut along K.
#[test]
fn a_training_step_of_two_layers() {
    let s = setup_of(0, |_, device| Tensor::zeros(1, DType::F32, device).unwrap());
    let init = Init::new(&s.device).seed(1);
    let [hidden, last] = [(784, 256), (256, 10)].map(|(from, to)| Linear::new(from, to, &init).unwrap());
    let model = Sequential::new().push(hidden).push(Relu).push(last);
    let mut optimizer = Adam::new(&model);
    let x = Tensor::zeros((128, 784), DType::F32, &s.device).unwrap();
    let target = Tensor::zeros(128, DType::I64, &s.device).unwrap();
    let mut step = || {
        model.forward(&x).unwrap().cross_entropy(&target).unwrap().backward().unwrap();
        optimizer.step().unwrap();
    };
    step();
    assert_eq!(s.launches(step), 15);
}
