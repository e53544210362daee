//! How fast the backend runs its kernels: `cargo bench -p isograd-cpu`. Pass a word to run only the lines that hold it.
//!
//! Every line gives the best of several runs, and the rate as a share of a contiguous copy (or of the fastest matrix
//! product) of the same run, since absolute times mean little on shared machines.

use isograd_core::backend::{Random, Reduce, Scatter};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Backend, Call, DType, Kernel, Layout, Memory, Operand, Shape};
use isograd_cpu::Cpu;
use std::time::{Duration, Instant};

/// A tensor of the benchmark.
struct Tensor {
    memory: Box<dyn Memory>,
    layout: Layout,
    dtype: DType,
}

impl Tensor {
    fn new(cpu: &Cpu, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let layout = Layout::contiguous(shape.into());
        let memory = cpu.allocate(layout.shape().numel() * dtype.size()).unwrap();
        let tensor = Tensor { memory, layout, dtype };
        let fill = |ints: &[i64], floats: &[f64]| tensor.run(cpu, Kernel::Fill, &[], ints, floats);
        fill(&[1], &[0.5]);
        tensor
    }

    /// A view of the same memory.
    fn operand<'a>(&'a self, layout: &'a Layout) -> Operand<'a> {
        Operand { memory: &*self.memory, layout, dtype: self.dtype }
    }

    fn whole(&self) -> Operand<'_> {
        self.operand(&self.layout)
    }

    fn run(&self, cpu: &Cpu, kernel: Kernel, inputs: &[Operand<'_>], ints: &[i64], floats: &[f64]) {
        cpu.run(&Call { op: "speed", kernel, inputs, outputs: &[self.whole()], ints, floats }).unwrap();
    }
}

/// The best time of one run.
fn best(mut f: impl FnMut()) -> Duration {
    f();
    let once = Instant::now();
    f();
    let repeats = (Duration::from_millis(5).as_nanos() / once.elapsed().as_nanos().max(1)).clamp(1, 100_000) as u32;
    let round = |_| {
        let start = Instant::now();
        (0..repeats).for_each(|_| f());
        start.elapsed() / repeats
    };
    (0..12).map(round).min().unwrap_or_default()
}

/// Prints lines whose name the user asked for.
struct Report {
    wanted: Option<String>,
}

impl Report {
    fn line(&self, name: &str, work: f64, unit: &str, f: impl FnMut()) {
        if self.wanted.as_ref().is_none_or(|w| name.contains(w.as_str())) {
            let time = best(f);
            println!(
                "{name:<44} {:>12.3} us {:>9.2} {unit}",
                time.as_secs_f64() * 1e6,
                work / time.as_secs_f64() / 1e9
            );
        }
    }
}

fn main() {
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let report = Report { wanted };
    let cpu = Cpu::default();
    println!("{} threads", rayon::current_num_threads());
    pointwise(&cpu, &report);
    moves(&cpu, &report);
    reductions(&cpu, &report);
    products(&cpu, &report);
    indices(&cpu, &report);
    draws(&cpu, &report);
}

fn pointwise(cpu: &Cpu, report: &Report) {
    for (n, name) in [(1, "1"), (128, "128"), (16 << 10, "16Ki"), (4 << 20, "4Mi")] {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32] {
            let (a, b, y) = (Tensor::new(cpu, n, dtype), Tensor::new(cpu, n, dtype), Tensor::new(cpu, n, dtype));
            report.line(&format!("add {dtype} {name}"), (3 * n * dtype.size()) as f64, "GB/s", || {
                y.run(cpu, Kernel::Pointwise(Pointwise::Add), &[a.whole(), b.whole()], &[1], &[1.0]);
            });
        }
        let (a, y) = (Tensor::new(cpu, n, DType::F32), Tensor::new(cpu, n, DType::F32));
        for row in [Pointwise::Relu, Pointwise::Exp, Pointwise::Gelu] {
            report.line(&format!("{} f32 {name}", row.name()), (2 * n * 4) as f64, "GB/s", || {
                y.run(cpu, Kernel::Pointwise(row), &[a.whole()], &[], &[]);
            });
        }
    }
    let (x, bias, y) = ([128, 256], 256, [128, 256]);
    let (x, bias, y) =
        (Tensor::new(cpu, x, DType::F32), Tensor::new(cpu, bias, DType::F32), Tensor::new(cpu, y, DType::F32));
    let expanded = bias.layout.expand(x.layout.shape());
    report.line("add f32 [128,256] + [256]", (128 * 256 * 8) as f64, "GB/s", || {
        let inputs = [x.whole(), bias.operand(&expanded)];
        y.run(cpu, Kernel::Pointwise(Pointwise::Add), &inputs, &[], &[1.0]);
    });
}

fn moves(cpu: &Cpu, report: &Report) {
    for n in [256, 2048] {
        let (x, y) = (Tensor::new(cpu, [n, n], DType::F32), Tensor::new(cpu, [n, n], DType::F32));
        let transposed = x.layout.transpose(0, 1);
        let bytes = (8 * n * n) as f64;
        report.line(&format!("fill f32 {n}x{n}"), bytes / 2.0, "GB/s", || y.run(cpu, Kernel::Fill, &[], &[], &[2.0]));
        report.line(&format!("copy f32 {n}x{n}"), bytes, "GB/s", || y.run(cpu, Kernel::Copy, &[x.whole()], &[], &[]));
        report.line(&format!("copy f32 {n}x{n} transposed"), bytes, "GB/s", || {
            y.run(cpu, Kernel::Copy, &[x.operand(&transposed)], &[], &[]);
        });
        let narrow = Tensor::new(cpu, [n, n], DType::BF16);
        report.line(&format!("cast f32 {n}x{n} to bf16"), bytes * 0.75, "GB/s", || {
            narrow.run(cpu, Kernel::Cast, &[x.whole()], &[], &[]);
        });
        report.line(&format!("cast bf16 {n}x{n} to f32"), bytes * 0.75, "GB/s", || {
            y.run(cpu, Kernel::Cast, &[narrow.whole()], &[], &[]);
        });
    }
}

fn reductions(cpu: &Cpu, report: &Report) {
    for (m, n) in [(128, 10), (128, 256), (2048, 2048)] {
        let x = Tensor::new(cpu, [m, n], DType::F32);
        let transposed = x.layout.transpose(0, 1);
        let (rows, columns) = (Tensor::new(cpu, m, DType::F32), Tensor::new(cpu, n, DType::F32));
        let all = Tensor::new(cpu, (), DType::F32);
        let index = Tensor::new(cpu, m, DType::I64);
        let bytes = (4 * m * n) as f64;
        for kind in [Reduce::Sum, Reduce::Max] {
            let kernel = Kernel::Reduce(kind);
            report.line(&format!("{kind:?} f32 [{m},{n}] rows"), bytes, "GB/s", || {
                rows.run(cpu, kernel, &[x.whole()], &[1], &[]);
            });
            report.line(&format!("{kind:?} f32 [{m},{n}] columns"), bytes, "GB/s", || {
                columns.run(cpu, kernel, &[x.operand(&transposed)], &[1], &[]);
            });
            report.line(&format!("{kind:?} f32 [{m},{n}] all"), bytes, "GB/s", || {
                all.run(cpu, kernel, &[x.whole()], &[2], &[]);
            });
        }
        report.line(&format!("ArgMax f32 [{m},{n}] rows"), bytes, "GB/s", || {
            index.run(cpu, Kernel::ArgMax, &[x.whole()], &[1], &[]);
        });
    }
    let x = Tensor::new(cpu, [8, 256, 256], DType::F32);
    let (middle, last) = (Tensor::new(cpu, [8, 256], DType::F32), Tensor::new(cpu, 256, DType::F32));
    let bytes = (4 * 8 * 256 * 256) as f64;
    let permuted = x.layout.permute(&[0, 2, 1]);
    report.line("Sum f32 [8,256,256] middle", bytes, "GB/s", || {
        middle.run(cpu, Kernel::Reduce(Reduce::Sum), &[x.operand(&permuted)], &[1], &[]);
    });
    let permuted = x.layout.permute(&[2, 0, 1]);
    report.line("Sum f32 [8,256,256] to the last", bytes, "GB/s", || {
        last.run(cpu, Kernel::Reduce(Reduce::Sum), &[x.operand(&permuted)], &[2], &[]);
    });
}

/// `[B, M, K] @ [B, K, N]`, each operand as it lies in memory or transposed.
fn products(cpu: &Cpu, report: &Report) {
    let shapes = [
        ("x w^T", [1, 128, 784, 256], false, true),
        ("g^T x", [1, 256, 128, 784], true, false),
        ("g w", [1, 128, 256, 784], false, false),
        ("x w^T", [1, 128, 256, 10], false, true),
        ("g^T x", [1, 10, 128, 256], true, false),
        ("g w", [1, 128, 10, 256], false, false),
        ("tiny", [1, 2, 2, 2], false, false),
        ("column", [1, 512, 512, 1], false, false),
        ("square", [1, 512, 512, 512], false, false),
        ("square", [1, 1024, 1024, 1024], false, false),
        ("batches", [64, 64, 64, 64], false, false),
        ("batches", [2, 512, 512, 512], false, false),
    ];
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for (name, [batch, m, k, n], at, bt) in shapes {
            let a = Tensor::new(cpu, if at { [batch, k, m] } else { [batch, m, k] }, dtype);
            let b = Tensor::new(cpu, if bt { [batch, n, k] } else { [batch, k, n] }, dtype);
            let y = Tensor::new(cpu, [batch, m, n], dtype);
            let turn = |l: &Layout, yes: bool| if yes { l.transpose(1, 2) } else { l.clone() };
            let (la, lb) = (turn(&a.layout, at), turn(&b.layout, bt));
            let name = format!("matmul {dtype} {name} [{batch},{m},{k}]x[{k},{n}]");
            report.line(&name, (2 * batch * m * k * n) as f64, "GFLOP/s", || {
                y.run(cpu, Kernel::Matmul, &[a.operand(&la), b.operand(&lb)], &[], &[1.0, 0.0]);
            });
        }
    }
}

fn indices(cpu: &Cpu, report: &Report) {
    let (rows, width, count) = (10_000, 256, 4096);
    for dtype in [DType::F32, DType::BF16] {
        let (table, y) = (Tensor::new(cpu, [rows, width], dtype), Tensor::new(cpu, [count, width], dtype));
        let index = Tensor::new(cpu, [count, 1], DType::I64);
        let numbers: Vec<u8> = (0..count as i64).flat_map(|i| (i * 7919 % rows as i64).to_ne_bytes()).collect();
        cpu.upload(&*index.memory, &numbers).unwrap();
        let expanded = index.layout.expand(&[count, width].into());
        let bytes = (2 * count * width * dtype.size()) as f64;
        report.line(&format!("gather rows {dtype} [4096,256]"), bytes, "GB/s", || {
            y.run(cpu, Kernel::Gather, &[table.whole(), index.operand(&expanded)], &[0], &[]);
        });
        report.line(&format!("scatter add rows {dtype} [4096,256]"), bytes * 1.5, "GB/s", || {
            table.run(cpu, Kernel::Scatter(Scatter::Add), &[index.operand(&expanded), y.whole()], &[0], &[]);
        });
    }
    let (x, index, y) = (Tensor::new(cpu, [128, 10], DType::F32), [128, 1], [128, 1]);
    let (index, y) = (Tensor::new(cpu, index, DType::I64), Tensor::new(cpu, y, DType::F32));
    report.line("gather targets f32 [128,1] of [128,10]", 128.0 * 16.0, "GB/s", || {
        y.run(cpu, Kernel::Gather, &[x.whole(), index.whole()], &[1], &[]);
    });
}

fn draws(cpu: &Cpu, report: &Report) {
    for dtype in [DType::F32, DType::BF16] {
        let y = Tensor::new(cpu, 1 << 20, dtype);
        for (kind, name) in [(Random::Uniform, "uniform"), (Random::Normal, "normal")] {
            report.line(&format!("{name} {dtype} 1Mi"), (1 << 20) as f64, "G/s", || {
                y.run(cpu, Kernel::Random(kind), &[], &[1, 2, 0, 0], &[0.0, 1.0]);
            });
        }
    }
    let (x, y, order) =
        (Tensor::new(cpu, [256, 1024], DType::F32), Tensor::new(cpu, [256, 1024], DType::F32), [256, 1024]);
    let order = Tensor::new(cpu, order, DType::I64);
    y.run(cpu, Kernel::Random(Random::Normal), &[], &[1, 2, 0, 0], &[0.0, 1.0]);
    x.run(cpu, Kernel::Copy, &[y.whole()], &[], &[]);
    report.line("sort f32 [256,1024]", (256 * 1024) as f64, "G/s", || {
        let outputs = [y.whole(), order.whole()];
        let (kernel, inputs) = (Kernel::Sort, &[x.whole()][..]);
        cpu.run(&Call { op: "speed", kernel, inputs, outputs: &outputs, ints: &[0], floats: &[] }).unwrap();
    });
}
