//! Decompositions, linear systems and determinants.

use super::common::one;
use super::invocation::Invocation;
use super::op::Class::Stages;
use super::op::Op;
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::Pad;
use isograd_core::{Result, Tensor};
use isograd_linalg::{self as linalg, Diagonal, Side, Triangle, Triangular};
use serde_json::{Value, json};

/// x plus `shift`, `2 shift`, .. on the diagonal, or the symmetric part of x, which makes matrices regular and eigenvalues distinct.
fn prepared(c: &Invocation<'_>, name: &str) -> Result<Tensor> {
    let (x, shift, is_symmetric) = (c.input(name)?.clone(), c.float_or("shift", 0.0)?, c.flag("symmetric")?);
    if !x.dtype().is_float() || x.rank() < 2 {
        return Ok(x);
    }
    let x = if is_symmetric { x.add(&x.t()?)?.mul_scalar(0.5)? } else { x };
    let [m, n] = [x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]];
    if shift == 0.0 {
        return Ok(x);
    }
    let k = m.min(n);
    let steps = Tensor::arange(k, x.device())?.add_scalar(1)?.cast(x.dtype())?.mul_scalar(shift)?;
    let ends = [[0, m - k], [0, n - k]].map(|ends| ends.map(|n| n as isize));
    x.add(&steps.diag_embed(0)?.pad(&ends, Pad::ZEROS)?)
}

/// The signs of the diagonal, which a decomposition does not specify.
fn signs(x: &Tensor) -> Result<Tensor> {
    x.detach().diagonal(0)?.sign()
}

/// The extents of a batch.
fn batch(g: &mut Gen) -> Vec<usize> {
    g.pick(&[&[][..], &[2], &[2, 1], &[0]]).to_vec()
}

fn side(g: &mut Gen) -> usize {
    if g.is_large() { 1 + g.below(40) } else { g.below(5) }
}

/// A batch of matrices, and attributes that make them regular.
fn matrices(g: &mut Gen, m: usize, n: usize, mut attributes: Value) -> Case {
    attributes["shift"] = json!(10 * m.min(n));
    let shape = [batch(g), vec![m, n]].concat();
    Case::new(attributes, vec![("x", g.tensor(Domain::Real, &shape))])
}

fn square(g: &mut Gen) -> Case {
    let n = side(g);
    matrices(g, n, n, json!({}))
}

/// Matrices whose determinants are small, so that differences of them have digits.
fn small(g: &mut Gen) -> Case {
    let n = g.below(5);
    let case = matrices(g, n, n, json!({}));
    Case { attributes: json!({"shift": 6}), ..case }
}

fn symmetric(g: &mut Gen) -> Case {
    let n = side(g);
    matrices(g, n, n, json!({"symmetric": true}))
}

fn rectangular(g: &mut Gen) -> Case {
    let (m, n) = (side(g), side(g));
    matrices(g, m, n, json!({}))
}

/// A system whose unknown is a matrix or, if it may be, a vector.
fn system(g: &mut Gen, n: usize, mut attributes: Value, may_be_vector: bool) -> Case {
    attributes["shift"] = json!(10 * n);
    let k = side(g);
    let (a, b) = match g.below(if may_be_vector { 5 } else { 3 }) {
        0 => (vec![n, n], vec![n, k]),
        1 => (vec![2, 1, n, n], vec![3, n, k]),
        2 => (vec![n, n], vec![2, n, k]),
        3 => (vec![n, n], vec![n]),
        _ => (vec![2, n, n], vec![2, n]),
    };
    Case::new(attributes, vec![("a", g.tensor(Domain::Real, &a)), ("b", g.tensor(Domain::Real, &b))])
}

fn solve_case(g: &mut Gen) -> Case {
    let n = side(g);
    system(g, n, json!({}), true)
}

const TRIANGLES: [(&str, Triangle); 2] = [("lower", Triangle::Lower), ("upper", Triangle::Upper)];
const SIDES: [(&str, Side); 2] = [("left", Side::Left), ("right", Side::Right)];
const DIAGONALS: [(&str, Diagonal); 2] = [("own", Diagonal::Own), ("ones", Diagonal::Ones)];

fn solve_triangular(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let options = Triangular {
        triangle: c.choice_or_first("triangle", &TRIANGLES)?,
        side: c.choice_or_first("side", &SIDES)?,
        diagonal: c.choice_or_first("diagonal", &DIAGONALS)?,
    };
    one(linalg::solve_triangular(&prepared(c, "a")?, c.input("b")?, &options))
}

fn triangular_case(g: &mut Gen) -> Case {
    let [triangle, side_of] =
        [TRIANGLES.map(|(name, _)| name), SIDES.map(|(name, _)| name)].map(|names| g.pick(&names));
    let (diagonal, _) = g.pick(&DIAGONALS);
    // Solutions with a diagonal of ones grow with the extent.
    let n = if diagonal == "ones" { g.below(4) } else { side(g) };
    let mut case = system(g, n, json!({"triangle": triangle, "side": side_of, "diagonal": diagonal}), false);
    if side_of == "right" {
        case.inputs[1].1 = case.inputs[1].1.t().and_then(|b| b.contiguous()).expect("a system has matrices");
    }
    case
}

fn qr(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (q, r) = linalg::qr(&prepared(c, "x")?)?;
    let signs = signs(&r)?;
    Ok(vec![q.mul(&signs.unsqueeze(-2)?)?, r.mul(&signs.unsqueeze(-1)?)?])
}

fn eigh(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (w, v) = linalg::eigh(&prepared(c, "x")?)?;
    let signs = signs(&v)?;
    Ok(vec![w, v.mul(&signs.unsqueeze(-2)?)?])
}

fn svd(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (u, s, vh) = linalg::svd(&prepared(c, "x")?)?;
    let signs = signs(&u)?;
    Ok(vec![u.mul(&signs.unsqueeze(-2)?)?, s, vh.mul(&signs.unsqueeze(-1)?)?])
}

fn slogdet(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    linalg::slogdet(&prepared(c, "x")?).map(|(sign, log)| vec![sign, log])
}

const WIDE: &str = "matrices are f32 or f64";

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new("cholesky", |c| one(linalg::cholesky(&prepared(c, "x")?)), symmetric).also(&["add"]),
        Op::new("solve_triangular", solve_triangular, triangular_case),
        Op::new("solve", |c| one(linalg::solve(&prepared(c, "a")?, c.input("b")?)), solve_case),
        Op::new("inv", |c| one(linalg::inv(&prepared(c, "x")?)), square),
        Op::new("det", |c| one(linalg::det(&prepared(c, "x")?)), small),
        Op::new("slogdet", slogdet, square),
        Op::new("qr", qr, rectangular),
        Op::new("eigh", eigh, symmetric).also(&["add"]),
        Op::new("svd", svd, rectangular),
    ]
    .into_iter()
    // The gradient of svd looks for equal values.
    .map(|op| if op.name == "svd" { op.launches(40, 180) } else { op.launches(40, 80) })
    .map(|op| op.class(Stages).wide(WIDE))
    .collect()
}
