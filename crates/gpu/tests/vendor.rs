//! Which products go to a vendor's library, and in what form: a driver with memory on the host has a library that reads
//! column-major matrices as all of them do, and the results are compared with the CPU's. Values are small integers, so sums
//! are exact.

use isograd_core::ops::{Activation, Approximate, Gemm, GemmBias, Transpose};
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{Blas, DType, Device, Error, Precision, Result, Shape, Tensor, bf16, f16, no_grad};
use isograd_cpu as _;
use isograd_gpu::driver::blas::{Epilogue, Factor, Library, Matrices, Product};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Address, Arg, Dialect, Driver, Geometry, Gpu, Handle, Limits};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };

/// Allocations of the host that stand for a device's. New ones are full of NaN.
#[derive(Default)]
struct Memory(Mutex<BTreeMap<Address, Vec<u8>>>);

impl Memory {
    fn with<R>(&self, at: Address, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut all = self.0.lock();
        let (start, buffer) = all.range_mut(..=at).next_back().expect("an allocation below");
        let first = (at - start) as usize;
        f(buffer.get_mut(first..first + bytes).expect("within an allocation"))
    }

    fn load(&self, at: Address, dtype: DType, index: usize) -> f64 {
        let size = dtype.size();
        self.with(at + (index * size) as Address, size, |bytes| match dtype {
            DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
            DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()) as f64,
            DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            other => panic!("{other} is multiplied"),
        })
    }

    fn store(&self, at: Address, dtype: DType, index: usize, v: f64) {
        let size = dtype.size();
        self.with(at + (index * size) as Address, size, |bytes| match dtype {
            DType::F64 => bytes.copy_from_slice(&v.to_le_bytes()),
            DType::F32 => bytes.copy_from_slice(&(v as f32).to_le_bytes()),
            DType::F16 => bytes.copy_from_slice(&f16::from_f64(v).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&bf16::from_f64(v).to_le_bytes()),
            other => panic!("{other} is multiplied"),
        })
    }
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// A library as its documentation has it: `d = epilogue(alpha op(a) op(b) + beta c + bias)`, column by column.
struct Columns {
    memory: Arc<Memory>,
    asked: Mutex<Vec<Product>>,
    /// Refuses problems that this holds of.
    refuses: Mutex<fn(&Product) -> bool>,
    pitch: AtomicUsize,
}

impl Library for Columns {
    fn workspace(&self) -> usize {
        1 << 10
    }

    fn pitch(&self) -> usize {
        self.pitch.load(Ordering::Relaxed)
    }

    fn has(&self, product: &Product) -> Result<bool> {
        Ok(!(self.refuses.lock())(product))
    }

    fn multiply(&self, product: &Product) -> Result<bool> {
        if !self.has(product)? {
            return Ok(false);
        }
        let problem = &product.problem;
        let (m, n) = (problem.d.rows, problem.d.columns);
        let read = |(matrices, transpose): (Matrices, Transpose)| match transpose {
            Transpose::No => [matrices.rows, matrices.columns],
            Transpose::Yes => [matrices.columns, matrices.rows],
        };
        let [[rows, k], [inner, columns]] = [read(problem.a), read(problem.b)];
        assert_eq!((rows, columns, inner, problem.c.rows, problem.c.columns), (m, n, k, m, n), "{problem:?}");
        let all = [problem.a.0, problem.b.0, problem.c, problem.d];
        assert!(all.iter().all(|matrices| matrices.leading >= matrices.rows), "{problem:?}");
        assert!(problem.batches > 1 || all.iter().all(|matrices| matrices.batch == 0), "{problem:?}");
        assert_eq!((problem.has_bias, problem.aux.is_some()), (product.bias != 0, product.aux != 0));
        assert_eq!(problem.summed.is_some(), product.sums != 0);
        assert!([product.bias, product.aux, product.sums].iter().all(|at| at.is_multiple_of(16)));
        self.memory.with(product.workspace, self.workspace(), |_| ());
        let at = |m: Matrices, batch: usize, row: usize, column: usize| batch * m.batch + column * m.leading + row;
        for batch in 0..problem.batches {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let factor = |(matrices, transpose), address, row, column| {
                    let (row, column) = if transpose == Transpose::Yes { (column, row) } else { (row, column) };
                    self.memory.load(address, problem.dtype, at(matrices, batch, row, column))
                };
                let sum: f64 =
                    (0..k).map(|l| factor(problem.a, product.a, i, l) * factor(problem.b, product.b, l, j)).sum();
                let mut v = product.alpha * sum;
                if product.beta != 0.0 {
                    v += product.beta * self.memory.load(product.c, problem.output, at(problem.c, batch, i, j));
                }
                if problem.has_bias {
                    v += self.memory.load(product.bias, problem.dtype, i);
                }
                let beside = j * problem.aux.unwrap_or(0) + i;
                let v = match (problem.epilogue, problem.aux) {
                    (Epilogue::Identity, _) => v,
                    (Epilogue::GeluTanh, None) => gelu_tanh(v),
                    (Epilogue::GeluTanh, Some(_)) => {
                        self.memory.store(product.aux, problem.output, beside, v);
                        gelu_tanh(v)
                    }
                    (Epilogue::GeluTanhGradient, _) => {
                        let x = self.memory.load(product.aux, problem.output, beside);
                        // A central difference: the error is of the square of the step.
                        v * (gelu_tanh(x + 1e-5) - gelu_tanh(x - 1e-5)) / 2e-5
                    }
                    (Epilogue::Masked, leading) => {
                        assert!(leading.is_some_and(|bits| bits >= m && bits.is_multiple_of(128)), "{problem:?}");
                        let byte = self.memory.with(product.aux + beside as Address / 8, 1, |bytes| bytes[0]);
                        if byte >> (beside % 8) & 1 != 0 { v } else { 0.0 }
                    }
                };
                self.memory.store(product.d, problem.output, at(problem.d, batch, i, j), v);
            }
        }
        let (factor, address, n) = match problem.summed {
            Some(Factor::A) => (problem.a, product.a, m),
            Some(Factor::B) => (problem.b, product.b, n),
            None => (problem.a, product.a, 0),
        };
        for i in 0..n {
            let is_row = (problem.summed == Some(Factor::A)) == (factor.1 == Transpose::No);
            let place = |l| if is_row { at(factor.0, 0, i, l) } else { at(factor.0, 0, l, i) };
            let sum = (0..k).map(|l| self.memory.load(address, problem.dtype, place(l))).sum();
            self.memory.store(product.sums, problem.output, i, sum);
        }
        self.asked.lock().push(*product);
        Ok(true)
    }
}

/// A device in the host's memory that runs only `gemm_sum`, `gemm_mask`, `pitch` and relu.
struct Host {
    null: NullDriver,
    memory: Arc<Memory>,
    library: Columns,
    /// Launches of other entries.
    others: AtomicUsize,
}

/// A source.
struct Program(String);

/// A kernel's name and its source.
struct Entry {
    name: String,
    source: String,
}

/// A launch's source and arguments.
struct Launched<'a> {
    source: &'a str,
    pointers: Vec<Address>,
    values: Vec<&'a [u8]>,
}

impl<'a> Launched<'a> {
    fn new(source: &'a str, arguments: &'a [Arg<'a>]) -> Launched<'a> {
        let (pointers, values): (Vec<_>, Vec<_>) = arguments.iter().partition(|a| matches!(a, Arg::Pointer(_)));
        Launched {
            source,
            pointers: pointers.iter().map(|a| if let Arg::Pointer(p) = a { *p } else { 0 }).collect(),
            values: values.iter().map(|a| if let Arg::Value(v) = a { v } else { &[][..] }).collect(),
        }
    }

    fn define(&self, name: &str) -> Option<&str> {
        self.source.lines().find_map(|l| l.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' '))
    }

    fn dtype(&self, name: &str) -> DType {
        FLOATS.into_iter().find(|t| Some(t.name()) == self.define(name)).unwrap()
    }

    fn ints(&self, value: usize) -> Vec<usize> {
        self.values[value].chunks(8).map(|int| i64::from_le_bytes(int.try_into().unwrap()) as usize).collect()
    }
}

impl Host {
    /// An elementwise relu of what is contiguous.
    fn relu(&self, launched: &Launched<'_>) {
        let (dtype, [x, y]) = (launched.dtype("T0"), launched.pointers[..].try_into().unwrap());
        for i in 0..launched.ints(1)[0] {
            self.memory.store(y, dtype, i, self.memory.load(x, dtype, i).max(0.0));
        }
    }

    /// `gemm_mask` of relu.
    fn mask(&self, launched: &Launched<'_>) {
        assert_eq!(launched.define("JOIN"), Some("relu_backward"));
        let (dtype, [c, mask]) = (launched.dtype("T"), launched.pointers[..].try_into().unwrap());
        let [m, n, step, words] = launched.ints(0)[..].try_into().unwrap();
        for (row, byte) in (0..m).flat_map(|row| (0..4 * words).map(move |byte| (row, byte))) {
            let is_set = |column: usize| column < n && self.memory.load(c, dtype, row * step + column) > 0.0;
            let bits = (0..8).map(|bit| (is_set(8 * byte + bit) as u8) << bit).sum();
            self.memory.with(mask + (4 * row * words + byte) as Address, 1, |at| at[0] = bits);
        }
    }

    /// `pitch`, of elements of 16 bits.
    fn pitch(&self, launched: &Launched<'_>) {
        let [x, y] = launched.pointers[..].try_into().unwrap();
        let [words, rows, columns, from, to] = launched.ints(0)[..].try_into().unwrap();
        let vector: usize = launched.define("VECTOR").unwrap().parse().unwrap();
        for i in 0..words * vector {
            let (row, column) = (i / to, i % to);
            let v = if row < rows && column < columns {
                self.memory.load(x, DType::BF16, row * from + column)
            } else {
                0.0
            };
            self.memory.store(y, DType::BF16, i, v);
        }
    }

    /// `gemm_sum` as `matmul.c` has it.
    fn sum(&self, launched: &Launched<'_>) {
        let (dtype, acc) = (launched.dtype("T"), launched.dtype("ACC"));
        let float = |bytes: &[u8]| match acc {
            DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
            _ => f32::from_le_bytes(bytes.try_into().unwrap()) as f64,
        };
        let (ints, define) = (launched.ints(0), |name| launched.define(name));
        let (alpha, beta) = (float(launched.values[1]), float(launched.values[2]));
        let [c, y, z, parts] = launched.pointers[..].try_into().unwrap();
        let [m, n, batches, n_parts] = ints[..4].try_into().unwrap();
        for i in 0..m * n * batches {
            let sum: f64 = (0..n_parts).map(|part| self.memory.load(parts, acc, part * m * n * batches + i)).sum();
            let mut v = alpha * sum;
            if beta != 0.0 {
                let place = i / n / m * ints[4] + i / n % m * ints[5] + i % n * ints[6];
                v += beta * self.memory.load(c, dtype, place);
            }
            if define("KEEPS_SUM") == Some("1") {
                self.memory.store(z, dtype, i, v);
            }
            let y_value = match define("ACTIVATION") {
                None => v,
                Some("relu") => v.max(0.0),
                Some("sigmoid") => 1.0 / (1.0 + (-v).exp()),
                Some("gelu_tanh") => gelu_tanh(v),
                Some(other) => panic!("{other} is not emulated"),
            };
            self.memory.store(y, dtype, i, y_value);
        }
    }
}

impl Driver for Host {
    fn dialect(&self) -> &'static Dialect {
        self.null.dialect()
    }

    fn limits(&self) -> &Limits {
        self.null.limits()
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let address = self.null.allocate(bytes)?;
        self.memory.0.lock().insert(address, vec![0xff; bytes]);
        Ok(address)
    }

    fn free(&self, address: Address) {
        self.memory.0.lock().remove(&address);
        self.null.free(address);
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.memory.with(to, bytes.len(), |there| there.copy_from_slice(bytes));
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.memory.with(from, bytes.len(), |there| bytes.copy_from_slice(there));
        Ok(())
    }

    fn copy(&self, _: Address, _: Address, _: usize) -> Result<()> {
        Err(Error::backend("copy", "products copy nothing"))
    }

    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        self.memory.with(at, bytes, |there| there.fill(byte));
        Ok(())
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        Ok((Handle::new(Program(source.into())), None))
    }

    fn load(&self, _: &[u8]) -> Result<Handle> {
        Err(Error::backend("load", "nothing is kept"))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let Program(source) = program.get();
        assert!(source.contains(&format!("KERNEL({name})")), "there is no entry {name}");
        Ok(Handle::new(Entry { name: name.into(), source: source.clone() }))
    }

    fn launch(&self, entry: &Handle, _: Geometry, arguments: &[Arg<'_>], _: &[Address]) -> Result<()> {
        let Entry { name, source } = entry.get();
        let launched = Launched::new(source, arguments);
        match name.as_str() {
            "gemm_sum" => self.sum(&launched),
            "gemm_mask" => self.mask(&launched),
            "pitch" => self.pitch(&launched),
            "elementwise" if launched.define("ROW") == Some("relu") => self.relu(&launched),
            _ => drop(self.others.fetch_add(1, Ordering::Relaxed)),
        }
        Ok(())
    }

    fn blas(&self) -> Option<&dyn Library> {
        Some(&self.library)
    }

    fn record(&self) -> Result<Handle> {
        Ok(Handle::new(()))
    }

    fn elapsed(&self, _: &Handle, _: &Handle) -> Result<f64> {
        Ok(0.0)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

struct Setup {
    host: Arc<Host>,
    gpu: Arc<Gpu>,
    device: Device,
    cpu: Device,
}

impl Setup {
    fn new() -> Setup {
        let memory = Arc::<Memory>::default();
        let library = Columns {
            memory: memory.clone(),
            asked: Mutex::default(),
            refuses: Mutex::new(|_| false),
            pitch: AtomicUsize::new(1),
        };
        let null = NullDriver::new(&DIALECT, 1 << 28);
        let host = Arc::new(Host { null, memory, library, others: AtomicUsize::new(0) });
        let gpu = Arc::new(Gpu::with_cache(host.clone(), None));
        // Whatever the environment says.
        gpu_device(&gpu).set_blas(Blas::Vendor);
        Setup { host, device: gpu_device(&gpu), gpu, cpu: Device::cpu().expect("the CPU backend is linked") }
    }

    fn library(&self) -> &Columns {
        &self.host.library
    }

    /// What the library was asked since the last call, and how many of our own kernels multiplied.
    fn asked(&self) -> (Vec<Product>, usize) {
        (std::mem::take(&mut *self.library().asked.lock()), self.host.others.swap(0, Ordering::Relaxed))
    }

    /// Small integers.
    fn tensor(&self, shape: impl Into<Shape>, dtype: DType, on: &Device) -> Tensor {
        let shape = shape.into();
        let values = (0..shape.numel()).map(|i| ((i * 7919 + shape.numel()) % 9) as f64 - 4.0).collect::<Vec<_>>();
        let made = Tensor::from_vec(values, &shape, &self.cpu).and_then(|t| t.cast(dtype)).unwrap();
        made.to_device(on).unwrap()
    }

    /// Compares what `f` makes here and on the CPU, exactly or within a relative error.
    fn check(&self, error: f64, f: impl Fn(&dyn Fn(&[usize], DType) -> Tensor) -> Result<Tensor>) {
        let on = |device: &Device| f(&|shape, dtype| self.tensor(shape, dtype, device)).unwrap();
        let values = |t: Tensor| t.detach().to_device(&self.cpu).and_then(|t| t.to_f64_vec()).unwrap();
        let [got, expected] = [on(&self.device), on(&self.cpu)].map(values);
        assert_eq!(got.len(), expected.len());
        for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
            assert!((g - e).abs() <= error * e.abs().max(1.0), "element {i}: got {g}, expected {e}");
        }
    }
}

fn gpu_device(gpu: &Arc<Gpu>) -> Device {
    Device::from_backend("host:0", gpu.clone())
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// A matrix `[rows, columns]` that lies in memory in another way.
type View = fn(&dyn Fn(&[usize]) -> Tensor, usize, usize) -> Result<Tensor>;

const VIEWS: [(&str, View); 5] = [
    ("contiguous", |make, r, c| Ok(make(&[r, c]))),
    ("transposed", |make, r, c| make(&[c, r]).t()),
    ("columns of a wider one", |make, r, c| make(&[r, c + 3]).narrow(1, 2, c)),
    ("rows of a taller one, transposed", |make, r, c| make(&[c + 2, r]).narrow(0, 1, c)?.t()),
    ("columns of a wider one, transposed", |make, r, c| make(&[c, r + 5]).narrow(1, 5, r)?.t()),
];

#[test]
fn factors_are_read_as_they_lie() {
    let setup = Setup::new();
    for dtype in FLOATS {
        for (a_name, a) in VIEWS {
            for (b_name, b) in VIEWS {
                setup.check(0.0, |make| {
                    let make = |shape: &[usize]| make(shape, dtype);
                    a(&make, 25, 27)?.matmul(&b(&make, 27, 26)?)
                });
                let (asked, ours) = setup.asked();
                assert_eq!((asked.len(), ours), (1, 0), "{dtype}: {a_name}, {b_name}");
                assert_eq!((asked[0].problem.dtype, asked[0].problem.output), (dtype, dtype));
            }
        }
    }
}

#[test]
fn columns_without_whole_words_are_extended() {
    let setup = Setup::new();
    setup.library().pitch.store(16, Ordering::Relaxed);
    let asked_for = |views: [View; 2], dtype, [m, n, k]: [usize; 3]| {
        setup.check(0.0, |make| {
            let make = |shape: &[usize]| make(shape, dtype);
            views[0](&make, m, k)?.matmul(&views[1](&make, k, n)?)
        });
        let (asked, ours) = setup.asked();
        assert_eq!((asked.len(), ours), (1, 0));
        asked[0]
    };
    let rows = |Product { problem: p, .. }: &Product| [p.a.0.rows, p.b.0.rows, p.d.rows];
    for ((_, a), (_, b)) in [[0, 1], [4, 3]].map(|[a, b]| (VIEWS[a], VIEWS[b])) {
        let product = asked_for([a, b], DType::BF16, [403, 405, 407]);
        let matrices = [product.problem.a.0, product.problem.b.0, product.problem.d];
        assert!(rows(&product).iter().all(|rows| rows.is_multiple_of(8)), "{product:?}");
        assert!(matrices.iter().all(|matrices| matrices.leading.is_multiple_of(8)), "{product:?}");
        assert!([product.a, product.b, product.d].iter().all(|at| at.is_multiple_of(16)), "{product:?}");
    }
    // Copies of these cost more than they gain, and f32 has other kernels.
    let plain = VIEWS[0].1;
    assert_eq!(rows(&asked_for([plain; 2], DType::BF16, [33, 35, 259])), [35, 259, 35]);
    assert_eq!(rows(&asked_for([plain; 2], DType::F32, [33, 35, 259])), [35, 259, 35]);
}

#[test]
fn leading_dimensions_and_transposes() -> Result<()> {
    let setup = Setup::new();
    let make = |shape: &[usize]| setup.tensor(shape, DType::F32, &setup.device);
    let matrices = |rows, columns, leading| Matrices { rows, columns, leading, batch: 0 };
    // y = a b is asked for as y^T = b^T a^T: a row-major b [27, 26] is the column-major [26, 27].
    make(&[25, 27]).matmul(&make(&[27, 26]))?;
    // The weight of a linear layer, [26, 27], and columns of a wider input.
    make(&[25, 29]).narrow(1, 1, 27)?.matmul(&make(&[26, 27]).t()?)?;
    // The gradient of a weight: x^T dy.
    make(&[27, 25]).t()?.matmul(&make(&[27, 26]))?;
    let problems: Vec<_> = setup.asked().0.iter().map(|p| (p.problem.a, p.problem.b, p.problem.d)).collect();
    let d = matrices(26, 25, 26);
    let expected = [
        ((matrices(26, 27, 26), Transpose::No), (matrices(27, 25, 27), Transpose::No), d),
        ((matrices(27, 26, 27), Transpose::Yes), (matrices(27, 25, 29), Transpose::No), d),
        ((matrices(26, 27, 26), Transpose::No), (matrices(25, 27, 25), Transpose::Yes), d),
    ];
    assert_eq!(problems, expected);
    Ok(())
}

#[test]
fn batches_are_strided_and_broadcast() {
    let setup = Setup::new();
    type Case = fn(&dyn Fn(&[usize]) -> Tensor) -> Result<Tensor>;
    let cases: [(&str, usize, Case); 5] = [
        ("batches", 3, |make| make(&[3, 24, 25]).matmul(&make(&[3, 25, 22]))),
        ("transposed within", 3, |make| {
            make(&[3, 25, 24]).transpose(1, 2)?.matmul(&make(&[3, 22, 25]).transpose(1, 2)?)
        }),
        ("one for all", 3, |make| make(&[24, 25]).matmul(&make(&[3, 25, 22]))),
        ("every other", 2, |make| make(&[4, 24, 25]).slice(0, 1, 4, 2)?.matmul(&make(&[2, 25, 23]))),
        ("one large instead of many small", 1, |make| make(&[3, 24, 25]).matmul(&make(&[25, 22]))),
    ];
    for (name, batches, case) in cases {
        setup.check(0.0, |make| case(&|shape| make(shape, DType::F32)));
        let (asked, ours) = setup.asked();
        assert_eq!((asked.len(), ours), (1, 0), "{name}");
        assert_eq!(asked[0].problem.batches, batches, "{name}");
    }
}

#[test]
fn what_is_added_is_a_bias_a_matrix_or_left_to_us() {
    let setup = Setup::new();
    let scale = Gemm { alpha: -2.0, beta: 1.0 };
    let gemm = |shape: &[usize], k, scale: Gemm, dtype| {
        setup.check(0.0, |make| make(&[25, k], dtype).gemm(&make(&[k, 24], dtype), Some(&make(shape, dtype)), &scale));
        setup.asked()
    };
    for dtype in FLOATS {
        let (asked, ours) = gemm(&[24], 23, scale, dtype);
        assert_eq!((asked.len(), ours), (1, 0));
        assert!(asked[0].problem.has_bias && asked[0].beta == 0.0 && asked[0].alpha == -2.0);
        let (asked, ours) = gemm(&[25, 24], 23, Gemm { alpha: 0.5, beta: -3.0 }, dtype);
        assert_eq!((asked.len(), ours), (1, 0));
        assert!(!asked[0].problem.has_bias && asked[0].beta == -3.0);
        // A bias with a factor, and a column: added to the sums, if that is worth it.
        for (shape, beta) in [(&[24][..], 2.0), (&[25, 1], 1.0), (&[], 1.0)] {
            let (asked, ours) = gemm(shape, 1032, Gemm { alpha: 2.0, beta }, dtype);
            assert_eq!((asked.len(), ours), (1, 0), "{shape:?}");
            assert_eq!((asked[0].problem.output, asked[0].alpha, asked[0].beta), (dtype.acc(), 1.0, 0.0));
        }
    }
    let add = |shape: &'static [usize], view: fn(Tensor) -> Result<Tensor>| {
        setup.check(0.0, |make| {
            let make = |shape: &[usize]| make(shape, DType::F32);
            make(&[25, 23]).gemm(&make(&[23, 24]), Some(&view(make(shape))?), &Gemm::default())
        });
        setup.asked().0
    };
    // A matrix without a factor, columns of a wider matrix, and a bias that does not begin at a multiple of 16 bytes.
    assert_eq!(add(&[25, 24], Ok)[0].problem.c.leading, 24);
    assert_eq!(add(&[25, 27], |c| c.narrow(1, 3, 24))[0].problem.c.leading, 27);
    let gemm_with_unaligned = || {
        setup.check(0.0, |make| {
            let make = |shape: &[usize]| make(shape, DType::F32);
            make(&[25, 1032]).gemm(&make(&[1032, 24]), Some(&make(&[29]).narrow(0, 1, 24)?), &Gemm::default())
        });
        setup.asked()
    };
    let (asked, ours) = gemm_with_unaligned();
    assert_eq!((asked.len(), ours, asked[0].problem.has_bias), (1, 0, false));
}

#[test]
fn activations_are_applied_once_and_exactly() {
    let setup = Setup::new();
    let dense = |dtype, k, activation, recorded, error| {
        setup.check(error, |make| {
            // Eighths, so that results are near 0, where activations bend.
            let x = eighths(&make(&[25, k], dtype))?;
            let options = GemmBias { trans_b: Transpose::Yes, activation, ..Default::default() };
            let (w, bias) = (make(&[24, k], dtype), make(&[24], dtype));
            if recorded {
                x.require_grad()?.gemm_bias(&w, Some(&bias), &options)
            } else {
                no_grad(|| x.gemm_bias(&w, Some(&bias), &options))
            }
        });
        setup.asked()
    };
    let gelu = Activation::Gelu(Approximate::Tanh);
    for dtype in FLOATS {
        let error = match dtype {
            DType::F64 => 1e-12,
            DType::F32 => 1e-5,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        let is_narrow = dtype.size() == 2;
        for (recorded, reduced) in [(false, false), (false, true), (true, false), (true, true)] {
            // In 16 bits the library computes it, if it may; otherwise its sums are what we work on.
            setup.device.set_matmul_precision(if reduced { Precision::Reduced } else { Precision::Exact });
            let (asked, ours) = dense(dtype, 1032, gelu, recorded, error);
            setup.device.set_matmul_precision(Precision::Exact);
            let is_whole = is_narrow && reduced;
            assert_eq!((asked.len(), ours), (1, 0));
            let Product { problem, d, aux, .. } = asked[0];
            assert_eq!(problem.epilogue, if is_whole { Epilogue::GeluTanh } else { Epilogue::Identity });
            assert_eq!((problem.has_bias, problem.aux), (is_whole, (is_whole && recorded).then_some(24)));
            assert_eq!(problem.output, if is_whole { dtype } else { dtype.acc() });
            assert!(d != aux);
        }
        for activation in [Activation::Relu, Activation::Sigmoid] {
            let error = if activation == Activation::Relu { 0.0 } else { error };
            let (asked, ours) = dense(dtype, 1032, activation, true, error);
            assert_eq!((asked.len(), ours), (1, 0));
            // Before relu, results may be rounded.
            let is_relu = activation == Activation::Relu;
            let (problem, output) = (asked[0].problem, if is_relu { dtype } else { dtype.acc() });
            assert_eq!((problem.output, problem.epilogue, problem.has_bias), (output, Epilogue::Identity, is_relu));
            // A short sum, or a small matrix, is not worth another pass.
            dense_alone(&setup, dtype, activation);
        }
    }
}

fn eighths(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::cpu()?)?.mul_scalar(0.125)?.to_device(t.device())
}

/// A dense layer of few products is ours alone.
fn dense_alone(setup: &Setup, dtype: DType, activation: Activation) {
    let make = |shape: &[usize]| setup.tensor(shape, dtype, &setup.device);
    let options = GemmBias { activation, ..Default::default() };
    for k in [127, 1000] {
        make(&[25, k]).gemm_bias(&make(&[k, 24]), Some(&make(&[24])), &options).unwrap();
        let (asked, ours) = setup.asked();
        assert_eq!((asked.len(), ours), (0, 1));
    }
}

#[test]
fn the_gradient_of_a_bias_comes_with_that_of_the_weight() {
    let setup = Setup::new();
    for dtype in FLOATS {
        for trans_b in [Transpose::No, Transpose::Yes] {
            let shape = if trans_b == Transpose::Yes { [24, 27] } else { [27, 24] };
            // The gradient of the weight, then that of the bias.
            let gradient = |wanted: usize| {
                setup.check(0.0, |make| {
                    let x = make(&[25, 27], dtype);
                    let (w, bias, dy) = (
                        make(&shape, dtype).require_grad()?,
                        make(&[24], dtype).require_grad()?,
                        make(&[25, 24], dtype),
                    );
                    let y = x.gemm_bias(&w, Some(&bias), &GemmBias { trans_b, ..Default::default() })?;
                    let options = BackwardOptions { gradient: Some(dy), ..Default::default() };
                    Ok(grad_with(&y, &[&w, &bias], &options)?.swap_remove(wanted))
                });
                setup.asked()
            };
            for wanted in [0, 1] {
                let (asked, ours) = gradient(wanted);
                assert_eq!((asked.len(), ours), (2, 0), "{dtype}, {trans_b:?}");
                let summed = if trans_b == Transpose::Yes { Factor::B } else { Factor::A };
                assert_eq!((asked[0].problem.summed, asked[1].problem.summed), (None, Some(summed)));
            }
        }
    }
}

/// Small integers, as a dense layer's gradient through the activation of its input.
fn gradient(
    make: &dyn Fn(&[usize], DType) -> Tensor,
    dtype: DType,
    activate: fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (x, w, dy) = (make(&[40, 72], dtype).require_grad()?, make(&[1032, 72], dtype), make(&[40, 1032], dtype));
    let y = activate(&x)?.gemm_bias(&w, None, &GemmBias { trans_b: Transpose::Yes, ..Default::default() })?;
    Ok(grad_with(&y, &[&x], &BackwardOptions { gradient: Some(dy), ..Default::default() })?.swap_remove(0))
}

#[test]
fn the_gradient_of_an_activation_comes_with_that_of_its_result() {
    let setup = Setup::new();
    for dtype in FLOATS {
        // The product and the gradient, all else of which runs here.
        setup.check(0.0, |make| gradient(make, dtype, Tensor::relu));
        let (asked, ours) = setup.asked();
        assert_eq!((asked.len(), ours), (2, 0), "{dtype}");
        let problems = asked.iter().map(|product| (product.problem.epilogue, product.problem.aux)).collect::<Vec<_>>();
        assert_eq!(problems, [(Epilogue::Identity, None), (Epilogue::Masked, Some(128))]);
        assert_eq!(asked[1].problem.output, dtype);
    }
    setup.device.set_matmul_precision(Precision::Reduced);
    for dtype in [DType::F16, DType::BF16] {
        let error = if dtype == DType::F16 { 1e-3 } else { 8e-3 };
        setup.check(error, |make| gradient(make, dtype, |x| x.gelu(Approximate::Tanh)));
        let (asked, ours) = setup.asked();
        let problems = asked.iter().map(|product| (product.problem.epilogue, product.problem.aux)).collect::<Vec<_>>();
        assert_eq!(problems, [(Epilogue::Identity, None), (Epilogue::GeluTanhGradient, Some(72))]);
        assert_eq!(ours, 1);
    }
}

#[test]
fn what_the_library_cannot_end_a_gradient_with_is_a_pass_behind_it() -> Result<()> {
    let setup = Setup::new();
    let entries = |activate, dtype| -> Result<Vec<&'static str>> {
        setup.gpu.launches();
        gradient(&|shape, dtype| setup.tensor(shape, dtype, &setup.device), dtype, activate)?;
        Ok(setup.gpu.launches().iter().map(|launch| launch.entry).collect())
    };
    let (sigmoid, pass): (fn(&Tensor) -> Result<Tensor>, _) =
        (Tensor::sigmoid, ["elementwise", "vendor", "vendor", "elementwise"]);
    assert_eq!(entries(sigmoid, DType::BF16)?, pass);
    assert_eq!(entries(|x| x.gelu(Approximate::Tanh), DType::BF16)?, pass);
    assert_eq!(entries(Tensor::relu, DType::BF16)?, ["elementwise", "vendor", "gemm_mask", "vendor"]);
    *setup.library().refuses.lock() = |product| product.problem.epilogue == Epilogue::Masked;
    assert_eq!(entries(Tensor::relu, DType::BF16)?, pass);
    setup.device.set_blas(Blas::Own);
    assert_eq!(entries(Tensor::relu, DType::F32)?, ["elementwise", "gemm", "gemm", "gemm_sum"]);
    Ok(())
}

#[test]
fn sums_that_the_library_refuses_are_ours() -> Result<()> {
    let setup = Setup::new();
    *setup.library().refuses.lock() = |product| product.problem.summed.is_some();
    let make = |shape: &[usize]| setup.tensor(shape, DType::F32, &setup.device);
    let (w, bias) = (make(&[27, 24]).require_grad()?, make(&[24]).require_grad()?);
    let y = make(&[25, 27]).gemm_bias(&w, Some(&bias), &GemmBias::default())?;
    let options = BackwardOptions { gradient: Some(make(&[25, 24])), ..Default::default() };
    grad_with(&y, &[&w, &bias], &options)?;
    let (asked, ours) = setup.asked();
    assert_eq!((asked.len(), ours), (2, 1));
    Ok(())
}

#[test]
fn the_input_of_an_activation_is_kept() {
    let setup = Setup::new();
    setup.device.set_matmul_precision(Precision::Reduced);
    for (dtype, columns, is_kept) in [(DType::BF16, 24, true), (DType::F16, 32, true), (DType::BF16, 26, false)] {
        let make = |shape: &[usize]| setup.tensor(shape, dtype, &setup.device);
        let options = GemmBias { activation: Activation::Gelu(Approximate::Tanh), ..Default::default() };
        let _y = make(&[20, 30])
            .require_grad()
            .unwrap()
            .gemm_bias(&make(&[30, columns]), Some(&make(&[columns])), &options)
            .unwrap();
        let (asked, ours) = setup.asked();
        assert_eq!((asked.len(), ours), if is_kept { (1, 0) } else { (0, 1) });
        let z: Vec<f64> = asked
            .iter()
            .flat_map(|p| (0..20 * columns).map(|i| setup.library().memory.load(p.aux, dtype, i)))
            .collect();
        let on_cpu = |shape: &[usize]| setup.tensor(shape, dtype, &setup.cpu);
        let expected =
            on_cpu(&[20, 30]).gemm(&on_cpu(&[30, columns]), Some(&on_cpu(&[columns])), &Gemm::default()).unwrap();
        assert!(!is_kept || z == expected.to_f64_vec().unwrap());
    }
}

#[test]
fn some_products_are_ours() -> Result<()> {
    let setup = Setup::new();
    let make = |shape: &[usize]| setup.tensor(shape, DType::F32, &setup.device);
    let is_ours = |y: Result<Tensor>| {
        y.unwrap();
        let (asked, ours) = setup.asked();
        asked.is_empty() && ours > 0
    };
    // A matrix and a vector.
    assert!(is_ours(make(&[25, 27]).matmul(&make(&[27]))));
    assert!(is_ours(make(&[1, 27]).matmul(&make(&[27, 26]))));
    // Few columns, few rows, few products.
    assert!(is_ours(make(&[25, 200]).matmul(&make(&[10, 200]).t()?)));
    assert!(is_ours(make(&[10, 200]).matmul(&make(&[200, 26]))));
    assert!(is_ours(make(&[25, 10]).matmul(&make(&[10, 26]))));
    // Outer products.
    assert!(is_ours(make(&[3, 4, 1]).matmul(&make(&[3, 1, 2]))));
    // Rows that are one row, and elements that are not neighbours in either direction.
    assert!(is_ours(make(&[1, 27]).broadcast_to((25, 27))?.matmul(&make(&[27, 26]))));
    assert!(is_ours(make(&[25, 54]).slice(1, 0, 54, 2)?.matmul(&make(&[27, 26]))));
    // What the library refuses, whole and in sums.
    *setup.library().refuses.lock() = |_| true;
    assert!(is_ours(make(&[25, 27]).matmul(&make(&[27, 26]))));
    let relu = GemmBias { activation: Activation::Relu, ..Default::default() };
    assert!(is_ours(make(&[25, 1100]).gemm_bias(&make(&[1100, 26]), None, &relu)));
    // A refused bias is added to the sums.
    *setup.library().refuses.lock() = |product| product.problem.has_bias;
    setup.check(0.0, |make| {
        let make = |shape: &[usize]| make(shape, DType::F64);
        make(&[25, 1100]).gemm(&make(&[1100, 26]), Some(&make(&[26])), &Gemm::default())
    });
    assert_eq!(setup.asked().0.len(), 1);
    // Nothing goes to a library that is off.
    *setup.library().refuses.lock() = |_| false;
    setup.device.set_blas(Blas::Own);
    assert!(is_ours(make(&[25, 27]).matmul(&make(&[27, 26]))));
    setup.device.set_blas(Blas::Vendor);
    assert!(!is_ours(make(&[25, 27]).matmul(&make(&[27, 26]))));
    Ok(())
}

#[test]
fn tf32_is_for_f32_and_only_where_it_is_asked_for() -> Result<()> {
    let setup = Setup::new();
    let precision = |dtype| {
        let make = |shape: &[usize]| setup.tensor(shape, dtype, &setup.device);
        make(&[25, 27]).matmul(&make(&[27, 26])).unwrap();
        setup.asked().0[0].problem.precision
    };
    assert_eq!(precision(DType::F32), Precision::Exact);
    setup.device.set_matmul_precision(Precision::Reduced);
    assert_eq!(precision(DType::F32), Precision::Tf32);
    setup.device.set_matmul_precision(Precision::Tf32);
    assert_eq!(FLOATS.map(precision), [Precision::Tf32, Precision::Exact, Precision::Exact, Precision::Exact]);
    setup.device.set_matmul_precision(Precision::Exact);
    assert_eq!(precision(DType::F32), Precision::Exact);
    Ok(())
}

#[test]
fn the_workspace_is_one_and_hidden() -> Result<()> {
    let setup = Setup::new();
    let make = |shape: &[usize]| setup.tensor(shape, DType::F32, &setup.device);
    let (a, b) = (make(&[25, 27]), make(&[27, 26]));
    let before = setup.device.memory();
    drop(a.matmul(&b)?);
    let held = setup.device.memory();
    assert_eq!(held.in_use, before.in_use);
    (0..10).try_for_each(|_| a.matmul(&b).map(drop))?;
    assert_eq!(setup.device.memory(), held);
    let asked = setup.asked().0;
    assert_eq!(asked.len(), 11);
    assert!(asked.iter().all(|p| p.workspace == asked[0].workspace));
    setup.gpu.launches();
    a.matmul(&b)?;
    assert_eq!(setup.gpu.launches().iter().map(|l| l.entry).collect::<Vec<_>>(), ["vendor"]);
    Ok(())
}
