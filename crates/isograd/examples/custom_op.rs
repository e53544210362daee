//! An op of a program's own: `softsign(x) = x / (1 + |x|)`, with kernels for every GPU, its gradient, and all the checks that
//! the ops of this library get. `cargo run --example custom_op -- --device opencl:0`; without a device, on all of them.

mod print;

use isograd::custom::{CustomOp, Gradient, Launch, Source};
use isograd::parity::case::{Case, Domain, Gen};
use isograd::{DType, Device, Result, Shape, Tensor};
use print::print;

/// What tests outside of this file take.
pub static SOFTSIGN: CustomOp = CustomOp {
    name: "softsign",
    output: like_first,
    cpu: |call, y| y.iter_mut().zip(&call.inputs[0].elements).for_each(|(y, x)| *y = x / (1.0 + x.abs())),
    source: Source::Common(
        "KERNEL(softsign)(GLOBAL const STORAGE(T0) *x, GLOBAL STORAGE(T) *y, i64 n) {
            EACH(i) {
                A v = LOAD(T0, x, i);
                STORE(T, y, i, v / (1 + fabs_(v)));
            }
        }",
    ),
    launch: Launch::Elements,
    gradient: Gradient::Once(|g| Ok(vec![Some(SOFTSIGN_BACKWARD.call(&[&g.dy, &g.inputs[0]])?)])),
};

/// `dy / (1 + |x|)^2`. A kernel may be another text in each dialect, which then may use what its vendor has.
static SOFTSIGN_BACKWARD: CustomOp = CustomOp {
    name: "softsign_backward",
    output: like_first,
    cpu: |call, dx| {
        let [dy, x] = [0, 1].map(|i| &call.inputs[i].elements);
        dx.iter_mut().zip(dy.iter().zip(x)).for_each(|(dx, (dy, x))| *dx = dy / ((1.0 + x.abs()) * (1.0 + x.abs())));
    },
    source: Source::Each(&[("cuda", BACKWARD_CUDA), ("hip", BACKWARD_CUDA), ("opencl", BACKWARD_OPENCL)]),
    launch: Launch::Groups { threads: 128, groups: |shape| shape.numel().div_ceil(128) },
    gradient: Gradient::None,
};
const BACKWARD_CUDA: &str = "
KERNEL(softsign_backward)(const STORAGE(T0) *__restrict__ dy, const STORAGE(T1) *__restrict__ x, STORAGE(T) *dx, i64 n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const A d = 1 + fabs_((A)LOAD(T1, x, i));
    STORE(T, dx, i, LOAD(T0, dy, i) / (d * d));
}";
const BACKWARD_OPENCL: &str = "
KERNEL(softsign_backward)(__global const STORAGE(T0) *dy, __global const STORAGE(T1) *x, __global STORAGE(T) *dx, i64 n) {
    const long i = get_global_id(0);
    if (i >= n) return;
    const A d = 1 + fabs((A)LOAD(T1, x, i));
    STORE(T, dx, i, LOAD(T0, dy, i) / (d * d));
}";

fn like_first(inputs: &[&Tensor]) -> Result<(Shape, DType)> {
    Ok((inputs[0].shape().clone(), inputs[0].dtype()))
}

/// Away from 0, where differences are no derivative.
pub fn case(g: &mut Gen) -> Case {
    Case::of(vec![("x", g.x(Domain::Away(&[0.0])))])
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let all = || Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten().map(|d| d.name).collect();
    let names = if let [_, name] = &arguments[..] { vec![name.clone()] } else { all() };
    let devices: Vec<Device> = names.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    for device in &devices {
        let x = Tensor::from_slice(&[-3f32, 0.0, 1.0], 3, device)?.leaf()?;
        let y = SOFTSIGN.call(&[&x])?;
        y.sum(..)?.backward()?;
        print(&format!("{device}: softsign {y}, slope {:?}", x.grad()));
    }
    // Forward and backward, in every dtype, against the CPU in f64.
    let report = isograd::parity::check(&SOFTSIGN, case, &devices)?;
    print(&report.text());
    assert!(report.passed());
    Ok(())
}
