//! Rows evaluated with tensors: a backward row becomes tensor ops, which are differentiable.

use super::value::{Real, Value};
use super::{Pointwise, Row, Visitor};
use crate::ops::{common_shape, run_expanded};
use crate::tensor::Attributes;
use crate::{Error, Result, Scalar, Tensor};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// A number of a row under construction: an index into the arena of this thread.
#[derive(Clone, Copy)]
struct Lift(usize);

/// The result of a comparison: a bool tensor in the arena.
#[derive(Clone, Copy)]
struct LiftMask(usize);

#[derive(Clone)]
enum Term {
    Scalar(f64),
    Tensor(Tensor),
}

thread_local! {
    static ARENA: RefCell<Vec<Result<Term, Option<Error>>>> = const { RefCell::new(Vec::new()) };
}

/// The outputs of `row` for these inputs and attributes, computed by tensor ops instead of a kernel. Errors: `Unsupported` for a row
/// that runs on integers only, or that has an angle or a remainder; the errors of the ops.
pub fn lift(row: Pointwise, inputs: &[Tensor], attributes: &[f64]) -> Result<Vec<Tensor>> {
    struct Evaluate<'a>(&'a [Tensor], &'a [f64]);
    impl Visitor<Lift, LiftMask> for Evaluate<'_> {
        type Output = Vec<Lift>;
        fn visit<R: Row<Lift, LiftMask, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Vec<Lift> {
            let x = std::array::from_fn(|i| push(Ok(Term::Tensor(self.0[i].clone()))));
            let k = std::array::from_fn(|i| Lift::c(self.1[i]));
            R::eval(x, k).to_vec()
        }
    }
    let start = ARENA.with_borrow(Vec::len);
    let unsupported = || Error::unsupported(row.name(), "an integer row has no derivative");
    let outputs = row.visit_real::<Lift, _>(Evaluate(inputs, attributes)).ok_or_else(unsupported);
    let outputs = outputs.and_then(|lifts| {
        // The first failure is the cause; values that depend on it report no error of their own.
        let failed = ARENA.with_borrow_mut(|arena| {
            arena[start..].iter_mut().find_map(|t| if let Err(e) = t { e.take() } else { None })
        });
        match failed {
            Some(error) => Err(error),
            None => lifts.into_iter().map(|l| to_tensor(l.0, &inputs[0])).collect(),
        }
    });
    ARENA.with_borrow_mut(|arena| arena.truncate(start));
    outputs
}

/// The outputs of `row`, computed by its kernel, for inputs that broadcast. They have the dtype of the first input; an `inout` row works
/// on copies of its first inputs. Outside of the tape. Errors: `Attr` for another number of inputs or attributes than the row has;
/// `Shape`; those of the kernel.
pub fn evaluate(row: Pointwise, inputs: &[Tensor], attributes: &[f64]) -> Result<Vec<Tensor>> {
    let op = row.name();
    if (inputs.len(), attributes.len()) != (row.inputs(), row.attributes()) {
        let given = format!("{} inputs and {} attributes were given", inputs.len(), attributes.len());
        return Err(Error::attr(op, format!("{given}, expected {} and {}", row.inputs(), row.attributes())));
    }
    let (before, read) = inputs.split_at(if row.is_inout() { row.outputs() } else { 0 });
    let (dtype, device) = (inputs[0].dtype(), inputs[0].device());
    let shape = common_shape(op, &inputs.iter().collect::<Vec<_>>())?;
    let outputs = (0..row.outputs()).map(|i| match before.get(i) {
        Some(x) => x.detach().broadcast_to(&shape)?.copy(),
        None => Tensor::allocate(op, &shape, dtype, device),
    });
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    if shape.numel() > 0 {
        let ints: SmallVec<[i64; 4]> = attributes.iter().map(|&v| v as i64).collect();
        let (read, written): (Vec<&Tensor>, Vec<&Tensor>) = (read.iter().collect(), outputs.iter().collect());
        run_expanded(op, row, &read, &written, Attributes { ints: &ints, floats: attributes })?;
    }
    Ok(outputs)
}

fn push(term: Result<Term, Option<Error>>) -> Lift {
    ARENA.with_borrow_mut(|arena| {
        arena.push(term);
        Lift(arena.len() - 1)
    })
}

fn get(id: usize) -> Result<Term, Option<Error>> {
    ARENA.with_borrow(|arena| match &arena[id] {
        Ok(term) => Ok(term.clone()),
        Err(_) => Err(None),
    })
}

fn to_tensor(id: usize, like: &Tensor) -> Result<Tensor> {
    match get(id) {
        Ok(Term::Tensor(t)) => Ok(t),
        Ok(Term::Scalar(v)) => Tensor::full(like.shape(), v, like.dtype(), like.device()),
        Err(error) => Err(error.unwrap_or_else(|| Error::value("lift", "an operand failed"))),
    }
}

fn unary(a: usize, scalar: impl Fn(f64) -> f64, tensor: impl Fn(&Tensor) -> Result<Tensor>) -> Lift {
    push(get(a).and_then(|a| match a {
        Term::Scalar(v) => Ok(Term::Scalar(scalar(v))),
        Term::Tensor(t) => tensor(&t).map(Term::Tensor).map_err(Some),
    }))
}

fn binary(
    a: usize,
    b: usize,
    scalars: impl Fn(f64, f64) -> f64,
    tensors: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    right: impl Fn(&Tensor, Scalar) -> Result<Tensor>,
    left: impl Fn(f64, &Tensor) -> Result<Tensor>,
) -> Lift {
    let compute = || {
        Ok(match (get(a)?, get(b)?) {
            (Term::Scalar(a), Term::Scalar(b)) => Term::Scalar(scalars(a, b)),
            (Term::Tensor(a), Term::Tensor(b)) => Term::Tensor(tensors(&a, &b)?),
            (Term::Tensor(a), Term::Scalar(b)) if a.dtype().is_float() => Term::Tensor(right(&a, b.into())?),
            (Term::Tensor(a), Term::Scalar(b)) => Term::Tensor(right(&a, (b as i64).into())?),
            (Term::Scalar(a), Term::Tensor(b)) => Term::Tensor(left(a, &b)?),
        })
    };
    push(compute())
}

impl Add for Lift {
    type Output = Lift;
    fn add(self, other: Lift) -> Lift {
        binary(self.0, other.0, |a, b| a + b, Tensor::add, Tensor::add_scalar, |a, b| b.add_scalar(a))
    }
}

impl Sub for Lift {
    type Output = Lift;
    fn sub(self, other: Lift) -> Lift {
        binary(self.0, other.0, |a, b| a - b, Tensor::sub, Tensor::sub_scalar, |a, b| b.rsub_scalar(a))
    }
}

impl Mul for Lift {
    type Output = Lift;
    fn mul(self, other: Lift) -> Lift {
        binary(self.0, other.0, |a, b| a * b, Tensor::mul, Tensor::mul_scalar, |a, b| b.mul_scalar(a))
    }
}

impl Div for Lift {
    type Output = Lift;
    fn div(self, other: Lift) -> Lift {
        binary(self.0, other.0, |a, b| a / b, Tensor::div, Tensor::div_scalar, |a, b| b.rdiv_scalar(a))
    }
}

impl Neg for Lift {
    type Output = Lift;
    fn neg(self) -> Lift {
        unary(self.0, |a| -a, Tensor::neg)
    }
}

impl BitAnd for LiftMask {
    type Output = LiftMask;
    fn bitand(self, other: LiftMask) -> LiftMask {
        mask(self.0, other.0, |a, b| a != 0.0 && b != 0.0, |a, b| a.where_cond(b, a))
    }
}

impl BitOr for LiftMask {
    type Output = LiftMask;
    fn bitor(self, other: LiftMask) -> LiftMask {
        mask(self.0, other.0, |a, b| a != 0.0 || b != 0.0, |a, b| a.where_cond(a, b))
    }
}

impl Not for LiftMask {
    type Output = LiftMask;
    fn not(self) -> LiftMask {
        LiftMask(unary(self.0, |a| (a == 0.0) as i64 as f64, Tensor::logical_not).0)
    }
}

/// Combines two masks.
fn mask(
    a: usize,
    b: usize,
    scalars: impl Fn(f64, f64) -> bool,
    tensors: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> LiftMask {
    let compute = || {
        Ok(match (get(a)?, get(b)?) {
            (Term::Scalar(a), Term::Scalar(b)) => Term::Scalar(scalars(a, b) as i64 as f64),
            (Term::Tensor(a), Term::Tensor(b)) => Term::Tensor(tensors(&a, &b)?),
            // A scalar mask either determines the result or does not change it. Evaluation with both values shows which.
            (Term::Scalar(s), Term::Tensor(t)) | (Term::Tensor(t), Term::Scalar(s)) => {
                let (with_false, with_true) = (scalars(0.0, s), scalars(1.0, s));
                if with_false == with_true { Term::Scalar(with_true as i64 as f64) } else { Term::Tensor(t) }
            }
        })
    };
    LiftMask(push(compute()).0)
}

fn compare(
    a: Lift,
    b: Lift,
    scalars: impl Fn(f64, f64) -> bool,
    tensors: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    right: impl Fn(&Tensor, Scalar) -> Result<Tensor>,
    mirrored: impl Fn(&Tensor, Scalar) -> Result<Tensor>,
) -> LiftMask {
    let scalars = |a, b| scalars(a, b) as i64 as f64;
    LiftMask(binary(a.0, b.0, scalars, tensors, right, |a, b| mirrored(b, a.into())).0)
}

impl Value for Lift {
    type Mask = LiftMask;

    fn c(v: f64) -> Lift {
        push(Ok(Term::Scalar(v)))
    }
    fn lt(self, other: Lift) -> LiftMask {
        compare(self, other, |a, b| a < b, Tensor::lt, Tensor::lt_scalar, Tensor::gt_scalar)
    }
    fn le(self, other: Lift) -> LiftMask {
        compare(self, other, |a, b| a <= b, Tensor::le, Tensor::le_scalar, Tensor::ge_scalar)
    }
    fn eq(self, other: Lift) -> LiftMask {
        compare(self, other, |a, b| a == b, Tensor::eq, Tensor::eq_scalar, Tensor::eq_scalar)
    }
    fn select(mask: LiftMask, yes: Lift, no: Lift) -> Lift {
        let compute = || {
            let (mask, yes, no) = (get(mask.0)?, get(yes.0)?, get(no.0)?);
            let mask = match mask {
                Term::Scalar(m) => return Ok(if m != 0.0 { yes } else { no }),
                Term::Tensor(mask) => mask,
            };
            Ok(Term::Tensor(match (yes, no) {
                (Term::Tensor(a), Term::Tensor(b)) => mask.where_cond(&a, &b)?,
                (Term::Tensor(a), Term::Scalar(b)) => mask.where_scalar(&a, b)?,
                (Term::Scalar(a), Term::Tensor(b)) => mask.logical_not()?.where_scalar(&b, a)?,
                (Term::Scalar(a), Term::Scalar(b)) => {
                    // The dtype is that of the row's first operand, which is the first in the arena.
                    let like = like_first_operand(&mask)?;
                    mask.where_cond(&like.full_like(a)?, &like.full_like(b)?)?
                }
            }))
        };
        push(compute())
    }
    fn abs(self) -> Lift {
        unary(self.0, f64::abs, Tensor::abs)
    }
}

/// A float tensor of the arena with the mask's shape.
fn like_first_operand(mask: &Tensor) -> Result<Tensor, Option<Error>> {
    let found = ARENA.with_borrow(|arena| {
        arena.iter().rev().find_map(|term| match term {
            Ok(Term::Tensor(t)) if t.dtype().is_float() => Some(t.clone()),
            _ => None,
        })
    });
    let like = found.ok_or_else(|| Error::value("lift", "a row without operands"))?;
    Ok(like.detach().broadcast_to(mask.shape()).unwrap_or(like))
}

macro_rules! real_functions {
    ($($name:ident $scalar:expr;)*) => {$(
        fn $name(self) -> Lift {
            unary(self.0, $scalar, Tensor::$name)
        }
    )*};
}

impl Real for Lift {
    real_functions! {
        exp f64::exp;
        expm1 f64::exp_m1;
        exp2 f64::exp2;
        log f64::ln;
        log2 f64::log2;
        log10 f64::log10;
        log1p f64::ln_1p;
        sqrt f64::sqrt;
        sin f64::sin;
        cos f64::cos;
        tan f64::tan;
        asin f64::asin;
        acos f64::acos;
        atan f64::atan;
        sinh f64::sinh;
        cosh f64::cosh;
        tanh f64::tanh;
        asinh libm::asinh;
        acosh Real::acosh;
        atanh libm::atanh;
        erf libm::erf;
        erfc libm::erfc;
        floor f64::floor;
        ceil f64::ceil;
        trunc f64::trunc;
        round f64::round_ties_even;
        sigmoid Real::sigmoid;
    }

    fn softplus(self) -> Lift {
        unary(self.0, Real::softplus, |t| t.softplus(1.0, f64::INFINITY))
    }

    fn pow(self, other: Lift) -> Lift {
        binary(self.0, other.0, f64::powf, Tensor::pow, Tensor::pow_scalar, |a, b| b.rpow_scalar(a))
    }
    fn atan2(self, _x: Lift) -> Lift {
        push(Err(Some(Error::unsupported("atan2", "no backward row has an angle"))))
    }
    fn fmod(self, _other: Lift) -> Lift {
        push(Err(Some(Error::unsupported("fmod", "a quotient with rounding has no derivative"))))
    }
}
