//! Matrix products.

use crate::bench::{BF16, Bench, Call, Cost, STORED, call, squares};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, none, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Dense, Product};
use crate::registry::op::result;
use crate::registry::op::{Companion, Op};
use isograd_core::ops::{Activation, Approximate, Gemm, GemmBias, Transpose};
use isograd_core::{Precision, Result, Tensor};
use serde_json::json;

fn gemm(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let turned = |name: &str, flag: &str| {
        let t = c.input(name)?;
        if c.flag(flag)? { t.t() } else { Ok(t.clone()) }
    };
    let scale = Gemm { alpha: c.float_or("alpha", 1.0)?, beta: c.float_or("beta", 1.0)? };
    one(turned("a", "trans_a")?.gemm(&turned("b", "trans_b")?, c.optional("c"), &scale))
}

/// Products of the absolute values, for both terms.
fn gemm_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let mut attributes = c.attributes.clone();
    for name in ["alpha", "beta"] {
        attributes.values.insert(name.into(), c.float_or(name, 1.0)?.abs().into());
    }
    absolute(&Invocation { attributes: &attributes, ..*c })
}

/// Extents of a product; in a timed case the extents of square matrices.
fn extents(g: &mut Gen) -> [usize; 3] {
    g.timed().map_or_else(|| [0; 3].map(|_| g.side()), |elements| [elements.isqrt(); 3])
}

fn gemm_case(g: &mut Gen) -> Case {
    let [m, k, n] = extents(g);
    let c = [vec![m, n], vec![n], vec![m, 1], vec![]][g.below(4)].clone();
    let inputs = [("a", vec![m, k]), ("b", vec![k, n]), ("c", c)].map(|(name, s)| (name, g.tensor(Domain::Real, &s)));
    Case::new(json!({"alpha": 0.5, "beta": -2.0}), inputs.to_vec())
}

fn matmul_case(g: &mut Gen) -> Case {
    let ([m, k, n], batch) = (extents(g), g.below(4));
    let (a, b) = match g.below(6) {
        _ if g.timed().is_some() => (vec![m, k], vec![k, n]),
        0 => (vec![k], vec![k]),
        1 => (vec![m, k], vec![k]),
        2 => (vec![k], vec![batch, k, n]),
        3 => (vec![batch, m, k], vec![k, n]),
        4 => (vec![2, 1, m, k], vec![batch, k, n]),
        _ => (vec![m, k], vec![k, n]),
    };
    Case::new(none(), vec![("a", g.tensor(Domain::Real, &a)), ("b", g.tensor(Domain::Real, &b))])
}

/// Activations of a product, by name.
pub(crate) const ACTIVATIONS: [(&str, Activation); 7] = [
    ("identity", Activation::Identity),
    ("relu", Activation::Relu),
    ("gelu", Activation::Gelu(Approximate::None)),
    ("gelu_tanh", Activation::Gelu(Approximate::Tanh)),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("silu", Activation::Silu),
];

/// The attribute `activation`; `None` without it.
pub(crate) fn activation(c: &Invocation<'_>) -> Result<Activation> {
    c.choice_or_first("activation", &ACTIVATIONS)
}

fn gemm_bias(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let turned = |flag: &str| Ok(if c.flag(flag)? { Transpose::Yes } else { Transpose::No });
    let options = GemmBias { trans_a: turned("trans_a")?, trans_b: turned("trans_b")?, activation: activation(c)? };
    one(c.input("a")?.gemm_bias(c.input("b")?, c.optional("bias"), &options))
}

fn gemm_bias_case(g: &mut Gen) -> Case {
    let ([m, k, n], turned, (activation, _)) = (extents(g), [g.coin(), g.coin()], g.pick(&ACTIVATIONS));
    let attributes = json!({"trans_a": turned[0], "trans_b": turned[1], "activation": activation});
    let a = match (turned[0], g.coin()) {
        (true, _) => vec![k, m],
        (false, is_matrix) if is_matrix || g.timed().is_some() => vec![m, k],
        (false, _) => vec![2, m, k],
    };
    let b = if turned[1] { [n, k] } else { [k, n] };
    let [a, b] = [a, b.to_vec()].map(|shape| g.tensor(Domain::Real, &shape));
    let mut bias = g.tensor(Domain::Real, &[n]);
    if activation == "relu" {
        // A bias that determines the sign, away from the kink: a product of elements is at most 4.
        let terms = a.dims().iter().copied().max().unwrap_or(0);
        bias = bias.sign().and_then(|sign| sign.mul_scalar((4 * terms + 4) as f64)).expect("floats have a sign");
    }
    Case::new(attributes, vec![("a", a), ("b", b), ("bias", bias)])
}

/// The sum of absolute values before the activation, and the result.
fn gemm_bias_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let mut attributes = c.attributes.clone();
    attributes.values.insert("activation".into(), "identity".into());
    let sum = absolute(&Invocation { attributes: &attributes, ..*c })?;
    one(sum[0].add(&result(c)?[0]))
}

pub(crate) fn ops() -> Vec<Op> {
    let product = |op: Op, companion: Companion| op.class(Product).companion(companion);
    vec![
        product(Op::new("matmul", |c| one(c.input("a")?.matmul(c.input("b")?)), matmul_case), absolute)
            .launches(3, 6)
            .bench([512, 1024, 2048, 4096, 8192].map(squares))
            .bench([vectors()]),
        product(Op::new("gemm", gemm, gemm_case), gemm_terms)
            .kernels(&["addmm"])
            .also(&["t"])
            // A vendor's library adds to its output: a copy of `c` comes first.
            .launches(2, 4),
        product(
            Op::new(
                "linear",
                |c| one(c.input("x")?.linear(c.input("w")?, c.optional("b"))),
                |g| {
                    g.at_least_rank(1);
                    let (x, i) = (g.x(Domain::Real), g.shape[g.shape.len() - 1]);
                    let mut inputs = vec![("x", x), ("w", g.tensor(Domain::Real, &[3, i]))];
                    if g.coin() {
                        inputs.push(("b", g.tensor(Domain::Real, &[3])));
                    }
                    Case::new(none(), inputs)
                },
            ),
            absolute,
        )
        .fused()
        .launches(2, 3),
        Op::new("gemm_bias", gemm_bias, gemm_bias_case)
            .class(Dense)
            .companion(gemm_bias_terms)
            .kernels(&["gemm_bias_relu", "gemm_bias_gelu", "gemm_bias_sigmoid", "gemm_bias_tanh", "gemm_bias_swish"])
            .fused()
            // A vendor's library has few of the activations; the others are separate kernels.
            .launches(2, 5)
            .bench(gelus()),
    ]
}

fn vectors() -> Bench {
    let action = call(|c| c.normals([&c.dims, &c.dims[1..]]), |_, x| x[0].matmul(&x[1]));
    Bench::new(&[8192, 8192], action, |c| Cost::product(c, [c.dims[0], c.dims[1], 1])).dtypes(STORED).variant("vector")
}

/// A dense layer with gelu: with the values for the backward pass, without them, and as PyTorch computes it by default.
fn gelus() -> [Bench; 3] {
    fn layer(x: &[Tensor]) -> Result<Tensor> {
        let activation = Activation::Gelu(Approximate::Tanh);
        x[0].gemm_bias(&x[1], Some(&x[2]), &GemmBias { trans_b: Transpose::Yes, activation, ..Default::default() })
    }
    // For `[B, K, N]`: x `[B, K]`, the weight `[N, K]` and the bias.
    fn inputs(c: &Call) -> Result<Vec<Tensor>> {
        let [b, k, n] = [c.dims[0], c.dims[1], c.dims[2]];
        c.normals([&[b, k], &[n, k], &[n]])
    }
    let of = |variant| {
        let cost = |c: &Call| Cost::product(c, [c.dims[0], c.dims[1], c.dims[2]]);
        let action = call(inputs, |_, x| layer(x));
        Bench::new(&[8192, 4096, 4096], action, cost).dtypes(BF16).shrinks(3).variant(variant)
    };
    let backward = |c: &Call| {
        let once = Cost::product(c, [c.dims[0], c.dims[1], c.dims[2]]);
        Cost { bytes: 2 * once.bytes, flops: 2.0 * once.flops }
    };
    [of("gelu").backward(backward), of("gelu, no grad"), of("gelu, reduced").precision(Precision::Reduced)]
}
