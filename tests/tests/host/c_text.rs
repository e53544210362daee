//! The C text of the pointwise table, compiled for the host and compared with the CPU backend.
//!
//! Both do the same operations in the same order, so functions of arithmetic and comparisons agree to the bit. Functions that call
//! functions may differ by 16 units in the last place, as two libraries may; where `1 + erf` cancels, measured by the
//! product of the inputs.

use isograd::backend::Operand;
use isograd::pointwise::{Domain, Pointwise, Row, Visitor, c_source};
use isograd::{Call, Device, Element, Kernel, Layout, Memory, Result, Shape};
use isograd_parity::case::Gen;
use isograd_tests::cpu;
use std::fmt::Write;
use std::fs::{self, File};
use std::process::Command;

/// Elements of one call, and calls of one function: each has attributes of its own.
const COUNT: usize = 400;
const CALLS: usize = 8;

/// What the text of a function calls, for floating point.
const MATH: &str = "#include <math.h>
#define abs_ MATH(fabs)
#define exp_ MATH(exp)
#define expm1_ MATH(expm1)
#define log_ MATH(log)
#define log1p_ MATH(log1p)
#define sqrt_ MATH(sqrt)
#define sin_ MATH(sin)
#define cos_ MATH(cos)
#define tanh_ MATH(tanh)
#define erf_ MATH(erf)
#define exp2_ MATH(exp2)
#define log2_ MATH(log2)
#define log10_ MATH(log10)
#define tan_ MATH(tan)
#define asin_ MATH(asin)
#define acos_ MATH(acos)
#define atan_ MATH(atan)
#define sinh_ MATH(sinh)
#define cosh_ MATH(cosh)
#define asinh_ MATH(asinh)
#define acosh_ MATH(acosh)
#define atanh_ MATH(atanh)
#define erfc_ MATH(erfc)
#define atan2_ MATH(atan2)
#define pow_ MATH(pow)
#define pow_of_ MATH(pow)
#define divide_(a, b) ((a) / (b))
#define quotient_(a, b) ((a) / (b))
#define floor_ MATH(floor)
#define ceil_ MATH(ceil)
#define trunc_ MATH(trunc)
#define round_ MATH(rint)
#define fmod_ MATH(fmod)
#define normal_cdf_(x) ((A)0.5 * (1 + erf_((x) * (A)0.70710678118654752)))
";

/// The CPU's own functions of f32. Another library's, which differ in the last place, would differ by more where a row cancels.
const OF_F32: &str = "#include <string.h>
#undef exp_
#undef expm1_
#undef log_
#undef log1p_
#undef tanh_
#undef erf_
static A power_of_2(int n) {
    unsigned bits = (unsigned)(n + 127) << 23;
    A power;
    memcpy(&power, &bits, 4);
    return power;
}
static A polynomial(const A *c, int n, A x) {
    A sum = c[0];
    for (int i = 1; i < n; i++) sum = sum * x + c[i];
    return sum;
}
static A exp_(A x) {
    static const A c[] = {1.9875691e-4f, 1.3982e-3f, 8.333452e-3f, 4.1665796e-2f, 1.6666665e-1f, 0.5f};
    if (x < -104) return 0;
    if (x > 89) x = 89;
    A whole = rintf(x * 1.44269504f), r = (x - whole * 0.6933594f) - whole * -2.1219444e-4f;
    A y = polynomial(c, 6, r) * (r * r) + r + 1;
    if (x != x) return x;
    int n = (int)whole, half = n >> 1;
    return y * power_of_2(half) * power_of_2(n - half);
}
static A expm1_(A x) {
    static const A c[] = {1.9875691e-4f, 1.3982e-3f, 8.333452e-3f, 4.1665796e-2f, 1.6666665e-1f, 0.5f};
    A near = x < -30 ? -30 : x > 30 ? 30 : x, whole = rintf(near * 1.44269504f);
    A r = (near - whole * 0.6933594f) - whole * -2.1219444e-4f, y = polynomial(c, 6, r) * (r * r) + r;
    if (x != x) return x;
    A power = power_of_2((int)whole);
    return copysignf(x > 30 ? exp_(x) : power * y + (power - 1), x);
}
static A log_(A x) {
    static const A c[] = {7.0376836e-2f, -1.151461e-1f, 1.1676999e-1f, -1.2420141e-1f, 1.4249323e-1f, -1.6668058e-1f,
                          2.0000715e-1f, -2.4999994e-1f, 3.333333e-1f};
    if (!(x > 0) || x == INFINITY) return x == 0 ? -INFINITY : x > 0 ? x : NAN;
    int shift = x < 1.17549435e-38f ? 23 : 0, n;
    A m = frexpf(shift ? x * 8388608.0f : x, &n);
    if (m < 0.70710678f) m *= 2, n--;
    A z = m - 1, turns = (A)(n - shift);
    A y = polynomial(c, 9, z) * z * (z * z) + turns * -2.1219444e-4f - 0.5f * (z * z);
    return z + y + turns * 0.6933594f;
}
static A log1p_(A x) {
    A sum = 1 + x, y = log_(sum);
    if (x == 0) return x;
    return sum == 0 || sum == INFINITY ? y : y + (x - (sum - 1)) / sum;
}
static A tanh_(A x) {
    static const A c[] = {-5.7049887e-3f, 2.063909e-2f, -5.3739716e-2f, 1.3331442e-1f, -3.333328e-1f};
    A size = fabsf(x);
    A small = polynomial(c, 5, x * x) * (x * x) * x + x, large = 1 - 2 / (exp_(size + size) + 1);
    return copysignf(size < 0.625f ? small : large, x);
}
static A erf_(A x) {
    static const A c[] = {-5.967617e-4f, 4.991194e-3f, -2.6768135e-2f, 1.12819925e-1f, -3.7612534e-1f, 1.2837917e-1f};
    static const A d[] = {-1.7285347e-5f, 3.8319797e-4f, -3.883964e-3f, 2.4254622e-2f, -1.0677788e-1f, -6.3484687e-1f, -1.2871751e-1f};
    A size = fabsf(x);
    if (size < 0.9277344f) return polynomial(c, 6, x * x) * x + x;
    return copysignf(1 - exp_(polynomial(d, 7, size) * size - size), x);
}
";

/// The same for 64-bit integers that wrap (`-fwrapv`). The smallest one divided by -1 traps in the processor.
const INTEGER: &str = "
static A abs_(A x) { return x < 0 ? -x : x; }
static A div_trunc_(A a, A b) { return b == -1 ? -a : a / b; }
static A div_floor_(A a, A b) {
    A q = div_trunc_(a, b), r = b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? q - 1 : q;
}
#define and_(a, b) ((a) & (b))
#define or_(a, b) ((a) | (b))
#define xor_(a, b) ((a) ^ (b))
static A shift_left_(A a, A b) { return b < 0 || b > 63 ? 0 : (A)((unsigned long long)a << b); }
static A shift_right_(A a, A b) { return a >> (b < 0 || b > 63 ? 63 : b); }
static A pow_(A base, A exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    A result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}
";

/// An arithmetic type of the C text.
trait Number: Element {
    /// What the text of a function needs.
    const PRELUDE: [&'static str; 3];
    fn draw(g: &mut Gen) -> Self;
    fn accepts(function: Pointwise, x: &[Self], attributes: &[Self]) -> bool;
    fn attributes(k: &[Self]) -> (Vec<i64>, Vec<f64>);
    /// Whether a result of inputs `x` is right, by this text of the function.
    fn agrees(text: &str, got: Self, expected: Self, x: &[Self]) -> bool;
}

/// Asks a function whether it accepts an element.
struct Accepts<'a, V> {
    x: &'a [V],
    k: &'a [V],
}

impl<V: Copy> Visitor<V, bool> for Accepts<'_, V> {
    type Output = bool;
    fn visit<R: Row<V, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> bool {
        R::check(std::array::from_fn(|i| self.x[i]), std::array::from_fn(|i| self.k[i])).unwrap_or(true)
    }
}

const INF: f64 = f64::INFINITY;
const SPECIAL: [f64; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    6.0,
    88.0,
    -104.0,
    1e-30,
    1e30,
    -1e30,
    1e-42,
    INF,
    -INF,
    f64::NAN,
];

fn draw_float(g: &mut Gen) -> f64 {
    match g.below(4) {
        0 => g.pick(&SPECIAL),
        1 => g.uniform(),
        2 => 12.0 * g.uniform() - 6.0,
        _ => (2.0 * g.uniform() - 1.0) * 10f64.powi(g.below(9) as i32 - 4),
    }
}

/// Functions that libraries round differently.
const FUNCTIONS: &[&str] = &[
    "exp",
    "expm1",
    "exp2",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "normal_cdf",
    "pow",
];

macro_rules! float {
    ($t:ty, $prelude:literal, $own:expr) => {
        impl Number for $t {
            const PRELUDE: [&'static str; 3] = [$prelude, MATH, $own];

            fn draw(g: &mut Gen) -> $t {
                draw_float(g) as $t
            }

            fn accepts(function: Pointwise, x: &[$t], k: &[$t]) -> bool {
                function.visit_real(Accepts { x, k }).expect("a function of floats")
            }

            fn attributes(k: &[$t]) -> (Vec<i64>, Vec<f64>) {
                (Vec::new(), k.iter().map(|&v| v as f64).collect())
            }

            fn agrees(text: &str, got: $t, expected: $t, x: &[$t]) -> bool {
                let calls = |names: &[&str]| names.iter().any(|name| text.contains(&format!(" {name}_(")));
                if got == expected || (got.is_nan() && expected.is_nan()) {
                    return true;
                }
                let cancelled = if calls(&["normal_cdf"]) { x.iter().product::<$t>().abs() } else { 0.0 };
                let bound = 16.0 * (<$t>::EPSILON / 2.0) * (expected.abs() + cancelled);
                expected.is_finite() && calls(FUNCTIONS) && (got - expected).abs() <= bound
            }
        }
    };
}

float!(f32, "typedef float A;\n#define MATH(name) name##f\n", OF_F32);
float!(f64, "typedef double A;\n#define MATH(name) name\n", "");

impl Number for i64 {
    const PRELUDE: [&'static str; 3] = ["typedef long long A;\n", INTEGER, ""];

    fn draw(g: &mut Gen) -> i64 {
        match g.below(3) {
            0 => g.pick(&[0, 1, -1, 2, -2, 7, -7, 63, i64::MAX, i64::MIN]),
            1 => g.below(200) as i64 - 100,
            _ => g.bits() as i64,
        }
    }

    fn accepts(function: Pointwise, x: &[i64], k: &[i64]) -> bool {
        let [x, k] = [x, k].map(|list| list.iter().map(|&v| isograd::pointwise::Int(v)).collect::<Vec<_>>());
        function.visit_integer(Accepts { x: &x, k: &k }).expect("a function of integers")
    }

    fn attributes(k: &[i64]) -> (Vec<i64>, Vec<f64>) {
        (k.to_vec(), Vec::new())
    }

    fn agrees(_text: &str, got: i64, expected: i64, _x: &[i64]) -> bool {
        got == expected
    }
}

/// A function's calls: attributes, and for each element the inputs.
struct Samples<T> {
    function: Pointwise,
    calls: Vec<(Vec<T>, Vec<Vec<T>>)>,
}

impl<T: Number> Samples<T> {
    fn new(function: Pointwise, g: &mut Gen) -> Samples<T> {
        let mut call = || {
            // Attributes that accept nothing (a negative size of an index) are drawn again.
            loop {
                let k: Vec<T> = (0..function.attributes()).map(|_| T::draw(g)).collect();
                let mut draw = || (0..function.inputs()).map(|_| T::draw(g)).collect::<Vec<T>>();
                let x: Vec<Vec<T>> = (0..20 * COUNT).map(|_| draw()).filter(|x| T::accepts(function, x, &k)).collect();
                if x.len() >= COUNT {
                    return (k, x[..COUNT].to_vec());
                }
            }
        };
        Samples { function, calls: (0..CALLS).map(|_| call()).collect() }
    }

    /// Inputs and attributes of every element, one after the other, as the program reads them.
    fn flat(&self) -> Vec<T> {
        let elements = self.calls.iter().flat_map(|(k, x)| x.iter().map(move |x| x.iter().chain(k)));
        elements.flatten().copied().collect()
    }

    /// What the CPU computes: for every element its outputs.
    fn reference(&self, device: &Device) -> Result<Vec<Vec<T>>> {
        let mut all = Vec::new();
        for (k, x) in &self.calls {
            all.extend(call(self.function, k, x, device)?);
        }
        Ok(all)
    }
}

fn call<T: Number>(function: Pointwise, k: &[T], x: &[Vec<T>], device: &Device) -> Result<Vec<Vec<T>>> {
    let backend = device.backend();
    let layout = Layout::contiguous(Shape::from(x.len()));
    let memory = |values: &[T]| -> Result<Box<dyn Memory>> {
        let mut bytes = Vec::new();
        T::extend_bytes(values, &mut bytes);
        let memory = backend.allocate(bytes.len())?;
        backend.upload(&*memory, &bytes)?;
        Ok(memory)
    };
    let columns: Vec<Vec<T>> = (0..function.inputs()).map(|i| x.iter().map(|x| x[i]).collect()).collect();
    let inputs = columns.iter().map(|c| memory(c)).collect::<Result<Vec<_>>>()?;
    let outputs =
        (0..function.outputs()).map(|i| memory(&columns[i.min(columns.len() - 1)])).collect::<Result<Vec<_>>>()?;
    let read = if function.is_inout() { function.outputs() } else { 0 };
    let [inputs, operands] = [&inputs[read..], &outputs[..]]
        .map(|all| all.iter().map(|m| Operand { memory: &**m, layout: &layout, dtype: T::DTYPE }).collect::<Vec<_>>());
    let (ints, floats) = T::attributes(k);
    let kernel = Kernel::Pointwise(function);
    backend.run(&Call {
        op: function.name(),
        kernel,
        inputs: &inputs,
        outputs: &operands,
        ints: &ints,
        floats: &floats,
    })?;
    let read_back = |memory: &dyn Memory| -> Result<Vec<T>> {
        let mut bytes = vec![0; x.len() * T::DTYPE.size()];
        backend.download(memory, 0, &mut bytes)?;
        Ok(T::from_bytes(&bytes))
    };
    let columns = outputs.iter().map(|m| read_back(&**m)).collect::<Result<Vec<_>>>()?;
    Ok((0..x.len()).map(|i| columns.iter().map(|c| c[i]).collect()).collect())
}

/// A program that reads elements of one function after the other and writes their outputs.
fn program<T: Number>(functions: &[Pointwise]) -> String {
    let mut text = format!("#include <stdio.h>\n#define FUNCTION static\n{}", T::PRELUDE.concat());
    let mut main = String::new();
    for function in functions {
        let name = function.name();
        // Functions have names that `math.h` has too.
        text += &c_source(*function).replacen(&format!("void {name}("), &format!("void function_{name}("), 1);
        let read = function.inputs() + function.attributes();
        let arguments = (0..read).map(|i| format!("x[{i}]")).chain((0..function.outputs()).map(|i| format!("&y[{i}]")));
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            main,
            "    for (int i = 0; i < {}; i++) {{
        A x[{read}], y[{outputs}];
        if (fread(x, sizeof(A), {read}, stdin) != {read}) return 1;
        function_{name}({arguments});
        if (fwrite(y, sizeof(A), {outputs}, stdout) != {outputs}) return 1;
    }}",
            CALLS * COUNT,
            outputs = function.outputs(),
        );
    }
    format!("{text}int main(void) {{\n{main}    return 0;\n}}\n")
}

/// Compiles and runs the program, and returns what it wrote.
fn run(source: &str, input: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("functions.c"), source).expect("the source is written");
    fs::write(path("input"), input).expect("the input is written");
    let flags = ["-std=c99", "-O1", "-ffp-contract=off", "-fwrapv", "-Werror=implicit-function-declaration"];
    let compiled =
        Command::new("cc").args(flags).arg("-o").args([path("functions"), path("functions.c")]).arg("-lm").output();
    let compiled = compiled.expect("this test needs a C compiler by the name of `cc`, as Rust's linker does");
    assert!(compiled.status.success(), "cc: {}", String::from_utf8_lossy(&compiled.stderr));
    let [input, output] = [File::open(path("input")), File::create(path("output"))].map(|f| f.expect("a file"));
    let status = Command::new(path("functions")).stdin(input).stdout(output).status().expect("the program runs");
    assert!(status.success(), "the program ended with {status}");
    fs::read(path("output")).expect("the output is read")
}

fn check<T: Number>(domains: &[Domain]) -> Result<()> {
    let device = cpu();
    let mut g = Gen::new(&[], 1, &device);
    let functions: Vec<Pointwise> =
        Pointwise::ALL.iter().copied().filter(|function| domains.contains(&function.domain())).collect();
    assert!(functions.len() > 20, "{} functions", functions.len());
    let samples: Vec<Samples<T>> = functions.iter().map(|&function| Samples::new(function, &mut g)).collect();
    let mut input = Vec::new();
    samples.iter().for_each(|s| T::extend_bytes(&s.flat(), &mut input));
    let output = T::from_bytes(&run(&program::<T>(&functions), &input));
    let mut output = output.as_slice();
    let mut wrong = Vec::new();
    for sample in &samples {
        let (function, text) = (sample.function, c_source(sample.function));
        let elements = sample.calls.iter().flat_map(|(k, x)| x.iter().map(move |x| (k, x)));
        let mut differences = Vec::new();
        for (expected, (k, x)) in sample.reference(&device)?.iter().zip(elements) {
            let (got, rest) = output.split_at(expected.len());
            output = rest;
            if !got.iter().zip(expected).all(|(&got, &expected)| T::agrees(&text, got, expected, x)) {
                differences.push(format!("{}({x:?}) {k:?}: {got:?} in C, {expected:?} on the CPU", function.name()));
            }
        }
        wrong.extend(differences.into_iter().next());
    }
    assert!(output.is_empty(), "{} numbers too many", output.len());
    assert!(wrong.is_empty(), "{} functions differ:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[test]
fn rows_in_c_compute_in_f64_what_the_cpu_does() -> Result<()> {
    check::<f64>(&[Domain::Real, Domain::Any])
}

#[test]
fn rows_in_c_compute_in_f32_what_the_cpu_does() -> Result<()> {
    check::<f32>(&[Domain::Real, Domain::Any])
}

#[test]
fn rows_in_c_compute_in_i64_what_the_cpu_does() -> Result<()> {
    check::<i64>(&[Domain::Integer, Domain::Any])
}
