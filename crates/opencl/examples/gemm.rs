//! The speed of matrix products: `gemm [ordinal [multiplications]]` prints TFLOP/s and GB/s by the device's clock, for
//! products of at most so many multiplications.

#[path = "../../isograd/examples/print/mod.rs"]
mod print;

use isograd_core::{Backend, Call, DType, Kernel, Layout, Operand, Result, Shape, f16};
use isograd_gpu::{Gpu, matmul};
use print::print;
use std::sync::Arc;

const RUNS: usize = 9;

/// Dtype, and M, K, N.
const PRODUCTS: [(DType, [usize; 3]); 16] = [
    (DType::F32, [1024, 1024, 1024]),
    (DType::F32, [2048, 2048, 2048]),
    (DType::F32, [4096, 4096, 4096]),
    (DType::F16, [1024, 1024, 1024]),
    (DType::F16, [2048, 2048, 2048]),
    (DType::F16, [4096, 4096, 4096]),
    (DType::F64, [1024, 1024, 1024]),
    (DType::F64, [2048, 2048, 2048]),
    (DType::F64, [4096, 4096, 4096]),
    (DType::F32, [128, 784, 256]),
    (DType::F32, [4096, 10, 256]),
    (DType::F32, [4096, 256, 10]),
    (DType::F32, [1, 4096, 16384]),
    (DType::F16, [1, 4096, 16384]),
    (DType::F32, [16384, 4096, 1]),
    (DType::F16, [16384, 4096, 1]),
];

/// Values in -1..1, since zeros run faster on devices that are held to a power.
fn values(dtype: DType, n: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(n * dtype.size());
    let mut state = 1u32;
    for _ in 0..n {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        let v = (state >> 8) as f64 / (1 << 23) as f64 - 1.0;
        match dtype {
            DType::F64 => bytes.extend(v.to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(v).to_le_bytes()),
            _ => bytes.extend((v as f32).to_le_bytes()),
        }
    }
    bytes
}

fn main() -> Result<()> {
    let ordinal = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(0);
    let gpu = Gpu::new(Arc::new(isograd_opencl::driver(ordinal)?));
    let limits = gpu.driver().limits();
    print(&format!("{}, {}", limits.name, limits.driver));
    let most = std::env::args().nth(2).and_then(|a| a.parse().ok()).unwrap_or(u64::MAX);
    for (dtype, [m, k, n]) in PRODUCTS.into_iter().filter(|(_, s)| s.iter().map(|&v| v as u64).product::<u64>() <= most)
    {
        for (name, is_turned) in [("a b  ", false), ("a b^T", true)] {
            let filled = |rows: usize, columns: usize| {
                let memory = gpu.allocate(rows * columns * dtype.size())?;
                gpu.upload(&*memory, &values(dtype, rows * columns))?;
                Ok((memory, Layout::contiguous(Shape::from([1, rows, columns]))))
            };
            let (a, la) = filled(m, k)?;
            let (b, lb) = if is_turned { filled(n, k)? } else { filled(k, n)? };
            let lb = if is_turned { lb.transpose(1, 2) } else { lb };
            let (y, ly) = filled(m, n)?;
            let inputs = [Operand { memory: &*a, layout: &la, dtype }, Operand { memory: &*b, layout: &lb, dtype }];
            let outputs = [Operand { memory: &*y, layout: &ly, dtype }];
            let floats = [1.0, 0.0];
            let call = Call {
                op: "gemm",
                kernel: Kernel::Matmul,
                inputs: &inputs,
                outputs: &outputs,
                ints: &[],
                floats: &floats,
            };
            gpu.run(&call)?;
            // Short products are repeated between two marks.
            let repeats = (1 << 33) / (m * n * k).max(1 << 28) + 1;
            let mut seconds = Vec::new();
            for _ in 0..RUNS {
                let from = gpu.driver().record()?;
                (0..repeats).try_for_each(|_| gpu.run(&call))?;
                seconds.push(gpu.driver().elapsed(&from, &gpu.driver().record()?)? / repeats as f64);
            }
            seconds.sort_by(f64::total_cmp);
            let median = seconds[RUNS / 2];
            let bytes = (m * k + k * n + m * n) * dtype.size();
            let plan = matmul::plan(&gpu, &call)?;
            print(&format!(
                "{dtype:5} {name} {m:5} x {k:5} x {n:5}: {:8.3} TFLOP/s {:8.1} GB/s {:10.1} us  {:?}, parts {}",
                2.0 * (m * n * k) as f64 / median * 1e-12,
                bytes as f64 / median * 1e-9,
                median * 1e6,
                plan.method,
                plan.parts,
            ));
        }
    }
    Ok(())
}
